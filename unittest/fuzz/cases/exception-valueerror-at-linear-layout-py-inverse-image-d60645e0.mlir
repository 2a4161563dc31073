#blocked=#ttg.blocked<{sizePerThread=[1,2],threadsPerWarp=[4,8],warpsPerCTA=[4,1],order=[1,0]}>#mma=#ttg.nvidia_mma<{versionMajor=2,versionMinor=0,warpsPerCTA=[1,4],instrShape=[16,8]}>
module attributes{""}{tt.func(<>{}<<{}>><>){%o=h.o<<>>
%ae=h.r<>
%a=ttg.convert_layout%ae:tensor<1x1xf32,#blocked>->tensor<65536x1xf32,#ttg.dot_op<{opIdx=0,parent=#mma,kWidth=2}>>
%r=t.r<><>}}
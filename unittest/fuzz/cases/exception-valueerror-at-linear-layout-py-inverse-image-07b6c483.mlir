#o={[]}{}#mma=#ttg.nvidia_mma<{versionMajor=2,versionMinor=0,warpsPerCTA=[4,1],instrShape=[16,8]}>
module attributes{""}{tt.func({})(<><>){%t=h.r<><><><>{}<<{}>><><<>><>{}<<{}>>{}<<{}>><>()(<>){%8=t.o<><<{}>><<{}>><>
%22=h.r
ttg.convert_layout%22:tensor<128x1xf16,#mma>->tensor<4096x1xf16,#ttg.dot_op<{opIdx=0,parent=#mma,kWidth=2}>>
g.l{r=<>}}<>}}
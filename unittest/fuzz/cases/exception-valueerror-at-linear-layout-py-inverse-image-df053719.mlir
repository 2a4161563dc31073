#blocked=#ttg.blocked<{sizePerThread=[1,1],threadsPerWarp=[1,4],warpsPerCTA=[4,1],order=[1,0]}>#shared=#ttg.swizzled_shared<{vec=1,perPhase=1,maxPhase=1,order=[1,0]}>#m=y
module attributes{""}{t.n(%arg1:!t.p%arg2:tensor<128x4xi2,#blocked>%arg3:!ttg.memdesc<8x4xf32,#shared,m>){%m=t.s<>
amdg.buffer_load_to_local%arg1[%arg2]%arg3[<>]}}
#written=#ttg.blocked<{sizePerThread=[1,4],threadsPerWarp=[4,4],warpsPerCTA=[2,2],order=[1,0]}>#read=#ttg.blocked<{sizePerThread=[4,1],threadsPerWarp=[4,1],warpsPerCTA=[2,2],order=[0,1]}>
module attributes{"ttg.threads-per-warp"=1:i2,""}{tt.func(%x:tensor<4x64xf32,#written>){ttg.convert_layout%x:->tensor<4x64xf32,#read>
t.n}}
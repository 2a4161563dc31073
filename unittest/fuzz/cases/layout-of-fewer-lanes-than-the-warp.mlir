#written = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 4], warpsPerCTA = [2, 2], order = [1, 0]}>
#read = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [4, 16], warpsPerCTA = [2, 2], order = [0, 1]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942", "ttg.threads-per-warp" = 64 : i32} {
  tt.func @f(%x: tensor<64x64xf32, #written>) {
    %0 = ttg.convert_layout %x : tensor<64x64xf32, #written> -> tensor<64x64xf32, #read>
    tt.return
  }
}

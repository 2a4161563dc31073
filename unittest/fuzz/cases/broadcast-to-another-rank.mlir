module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func @f() {
    %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %1 = tt.broadcast %0 : tensor<64xi32> -> tensor<64x64xi32>
    tt.return
  }
}

tt.func @f() {
  %a = tt.make_range {end = 8 : i32, start  0 : i32} : tensor<8xi32>
  tt.return
}

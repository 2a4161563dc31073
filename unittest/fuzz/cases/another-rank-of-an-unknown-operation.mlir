module {
  tt.func @f(%a: tensor<16xi32>, %b: i32) {
    %0 = foo.bar %b, %b : i32 -> tensor<16x16xi32>
    %1 = tt.expand_dims %0 {axis = 1 : i32} : tensor<16xi32> -> tensor<16x1xi32>
    %2 = tt.broadcast %1 : tensor<16x1xi32> -> tensor<16x8xi32>
    %3 = arith.addi %0, %a : tensor<16xi32>
    tt.return
  }
}

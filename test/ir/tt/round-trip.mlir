// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton %{ triton-opt --host=always %s | FileCheck %s %}

// Triton's own operations: read, verified and printed as they are, by us and by Triton.

// CHECK:      tt.func @tt(%arg0: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32>, %arg2: i32) {
// CHECK-NEXT:   %c1_i64 = arith.constant 1 : i64
// CHECK-NEXT:   %0 = tt.get_program_id x : i32
// CHECK-NEXT:   %1 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
// CHECK-NEXT:   %2 = tt.expand_dims %1 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
// CHECK-NEXT:   %3 = tt.broadcast %2 : tensor<32x1xi32> -> tensor<32x32xi32>
// CHECK-NEXT:   %4 = tt.splat %arg0 : !tt.ptr<f16> -> tensor<32x32x!tt.ptr<f16>>
// CHECK-NEXT:   %5 = tt.addptr %4, %3 : tensor<32x32x!tt.ptr<f16>>, tensor<32x32xi32>
// CHECK-NEXT:   %6 = tt.load %5 : tensor<32x32x!tt.ptr<f16>>
// CHECK-NEXT:   %7 = tt.trans %6 {order = array<i32: 1, 0>} : tensor<32x32xf16> -> tensor<32x32xf16>
// CHECK-NEXT:   %cst = arith.constant dense<0.000000e+00> : tensor<32x32xf32>
// CHECK-NEXT:   %8 = tt.dot %6, %7, %cst : tensor<32x32xf16> * tensor<32x32xf16> -> tensor<32x32xf32>
// CHECK-NEXT:   %9 = "tt.reduce"(%8) <{axis = 1 : i32}> ({
// CHECK-NEXT:   ^bb0(%arg3: f32, %arg4: f32):
// CHECK-NEXT:     %12 = arith.addf %arg3, %arg4 : f32
// CHECK-NEXT:     tt.reduce.return %12 : f32
// CHECK-NEXT:   }) : (tensor<32x32xf32>) -> tensor<32xf32>
// CHECK-NEXT:   %10 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<32x!tt.ptr<f32>>
// CHECK-NEXT:   %11 = tt.addptr %10, %1 : tensor<32x!tt.ptr<f32>>, tensor<32xi32>
// CHECK-NEXT:   tt.store %11, %9 : tensor<32x!tt.ptr<f32>>
// CHECK-NEXT:   tt.return
// CHECK-NEXT: }
tt.func @tt(%arg0: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32>, %arg2: i32) {
  %c1_i64 = arith.constant 1 : i64
  %0 = tt.get_program_id x : i32
  %1 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
  %2 = tt.expand_dims %1 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
  %3 = tt.broadcast %2 : tensor<32x1xi32> -> tensor<32x32xi32>
  %4 = tt.splat %arg0 : !tt.ptr<f16> -> tensor<32x32x!tt.ptr<f16>>
  %5 = tt.addptr %4, %3 : tensor<32x32x!tt.ptr<f16>>, tensor<32x32xi32>
  %6 = tt.load %5 : tensor<32x32x!tt.ptr<f16>>
  %7 = tt.trans %6 {order = array<i32: 1, 0>} : tensor<32x32xf16> -> tensor<32x32xf16>
  %cst = arith.constant dense<0.000000e+00> : tensor<32x32xf32>
  %8 = tt.dot %6, %7, %cst : tensor<32x32xf16> * tensor<32x32xf16> -> tensor<32x32xf32>
  %9 = "tt.reduce"(%8) <{axis = 1 : i32}> ({
  ^bb0(%arg3: f32, %arg4: f32):
    %12 = arith.addf %arg3, %arg4 : f32
    tt.reduce.return %12 : f32
  }) : (tensor<32x32xf32>) -> tensor<32xf32>
  %10 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<32x!tt.ptr<f32>>
  %11 = tt.addptr %10, %1 : tensor<32x!tt.ptr<f32>>, tensor<32xi32>
  tt.store %11, %9 : tensor<32x!tt.ptr<f32>>
  tt.return
}

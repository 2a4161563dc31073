// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton %{ triton-opt --host=always %s | FileCheck %s %}

// Arithmetic: read, verified and printed as they are, by us and by Triton.

// CHECK:      tt.func @arith(%arg0: i32, %arg1: f32, %arg2: tensor<8xi32>, %arg3: tensor<8xf32>) {
// CHECK-NEXT:   %c1_i32 = arith.constant 1 : i32
// CHECK-NEXT:   %cst = arith.constant dense<0.000000e+00> : tensor<8xf32>
// CHECK-NEXT:   %0 = arith.addi %arg0, %c1_i32 : i32
// CHECK-NEXT:   %1 = arith.muli %0, %arg0 overflow<nsw> : i32
// CHECK-NEXT:   %2 = arith.cmpi slt, %1, %arg0 : i32
// CHECK-NEXT:   %3 = arith.select %2, %1, %arg0 : i32
// CHECK-NEXT:   %4 = arith.extsi %3 : i32 to i64
// CHECK-NEXT:   %5 = arith.trunci %4 : i64 to i16
// CHECK-NEXT:   %6 = arith.sitofp %5 : i16 to f32
// CHECK-NEXT:   %7 = arith.mulf %6, %arg1 fastmath<fast> : f32
// CHECK-NEXT:   %8 = arith.addf %arg3, %cst : tensor<8xf32>
// CHECK-NEXT:   %9 = arith.truncf %8 : tensor<8xf32> to tensor<8xf16>
// CHECK-NEXT:   %10 = arith.cmpf olt, %8, %cst : tensor<8xf32>
// CHECK-NEXT:   %11 = arith.bitcast %arg2 : tensor<8xi32> to tensor<8xf32>
// CHECK-NEXT:   tt.return
// CHECK-NEXT: }
tt.func @arith(%arg0: i32, %arg1: f32, %arg2: tensor<8xi32>, %arg3: tensor<8xf32>) {
  %c1_i32 = arith.constant 1 : i32
  %cst = arith.constant dense<0.000000e+00> : tensor<8xf32>
  %0 = arith.addi %arg0, %c1_i32 : i32
  %1 = arith.muli %0, %arg0 overflow<nsw> : i32
  %2 = arith.cmpi slt, %1, %arg0 : i32
  %3 = arith.select %2, %1, %arg0 : i32
  %4 = arith.extsi %3 : i32 to i64
  %5 = arith.trunci %4 : i64 to i16
  %6 = arith.sitofp %5 : i16 to f32
  %7 = arith.mulf %6, %arg1 fastmath<fast> : f32
  %8 = arith.addf %arg3, %cst : tensor<8xf32>
  %9 = arith.truncf %8 : tensor<8xf32> to tensor<8xf16>
  %10 = arith.cmpf olt, %8, %cst : tensor<8xf32>
  %11 = arith.bitcast %arg2 : tensor<8xi32> to tensor<8xf32>
  tt.return
}

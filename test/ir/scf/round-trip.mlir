// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton %{ triton-opt --host=always %s | FileCheck %s %}

// Loops and branches: read, verified and printed as they are, by us and by Triton.

// CHECK:      tt.func @scf(%arg0: i32, %arg1: i32, %arg2: i1) -> i32 {
// CHECK-NEXT:   %c0_i32 = arith.constant 0 : i32
// CHECK-NEXT:   %c1_i32 = arith.constant 1 : i32
// CHECK-NEXT:   %0 = scf.for %arg3 = %c0_i32 to %arg0 step %c1_i32 iter_args(%arg4 = %c0_i32) -> (i32)  : i32 {
// CHECK-NEXT:     %3 = arith.addi %arg4, %arg3 : i32
// CHECK-NEXT:     scf.yield %3 : i32
// CHECK-NEXT:   } {tt.num_stages = 3 : i32}
// CHECK-NEXT:   %1 = scf.if %arg2 -> (i32) {
// CHECK-NEXT:     scf.yield %0 : i32
// CHECK-NEXT:   } else {
// CHECK-NEXT:     scf.yield %arg1 : i32
// CHECK-NEXT:   }
// CHECK-NEXT:   %2 = scf.while (%arg3 = %1) : (i32) -> i32 {
// CHECK-NEXT:     %3 = arith.cmpi slt, %arg3, %arg1 : i32
// CHECK-NEXT:     scf.condition(%3) %arg3 : i32
// CHECK-NEXT:   } do {
// CHECK-NEXT:   ^bb0(%arg3: i32):
// CHECK-NEXT:     %3 = arith.addi %arg3, %c1_i32 : i32
// CHECK-NEXT:     scf.yield %3 : i32
// CHECK-NEXT:   }
// CHECK-NEXT:   tt.return %2 : i32
// CHECK-NEXT: }
tt.func @scf(%arg0: i32, %arg1: i32, %arg2: i1) -> i32 {
  %c0_i32 = arith.constant 0 : i32
  %c1_i32 = arith.constant 1 : i32
  %0 = scf.for %arg3 = %c0_i32 to %arg0 step %c1_i32 iter_args(%arg4 = %c0_i32) -> (i32)  : i32 {
    %3 = arith.addi %arg4, %arg3 : i32
    scf.yield %3 : i32
  } {tt.num_stages = 3 : i32}
  %1 = scf.if %arg2 -> (i32) {
    scf.yield %0 : i32
  } else {
    scf.yield %arg1 : i32
  }
  %2 = scf.while (%arg3 = %1) : (i32) -> i32 {
    %3 = arith.cmpi slt, %arg3, %arg1 : i32
    scf.condition(%3) %arg3 : i32
  } do {
  ^bb0(%arg3: i32):
    %3 = arith.addi %arg3, %c1_i32 : i32
    scf.yield %3 : i32
  }
  tt.return %2 : i32
}

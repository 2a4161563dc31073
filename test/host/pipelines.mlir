// REQUIRES: triton
// RUN: triton-opt %s -canonicalize -cse --mlir-print-ir-after-all 2>&1 >/dev/null | FileCheck %s --check-prefix=AFTER
// RUN: triton-opt %s -canonicalize -cse --mlir-print-ir-before=cse 2>&1 >/dev/null | FileCheck %s --check-prefix=BEFORE
// RUN: triton-opt %s -cse -canonicalize | FileCheck %s
// RUN: triton-opt %s --pass-pipeline='builtin.module(cse,canonicalize{top-down=true},tt.func(tritonamdgpu-canonicalize-pointers))' | FileCheck %s
// RUN: triton-opt %s -cse --mlir-timing 2>&1 >/dev/null | FileCheck %s --check-prefix=TIMING
// RUN: not triton-opt %s --pass-pipeline='builtin.module(tt.func(cse))' 2>&1 | FileCheck %s --check-prefix=NESTED --strict-whitespace
// RUN: not triton-opt %s -tritonamdgpu-canonicalize-pointers='enable-large-tensor-ptr-canon=true' 2>&1 | FileCheck %s --check-prefix=FIXED

// The dead product goes with the first pass, the equal sum with the second.

// AFTER:     IR Dump After canonicalize
// AFTER-NOT: arith.muli
// AFTER:     arith.addi
// AFTER:     arith.addi
// AFTER:     IR Dump After cse
// AFTER:     arith.addi
// AFTER-NOT: arith.addi

// BEFORE-NOT: canonicalize
// BEFORE:     IR Dump Before cse
// BEFORE:     arith.addi
// BEFORE:     arith.addi

// CHECK-NOT: arith.muli
// CHECK:     arith.addi
// CHECK-NOT: arith.addi

// TIMING: execution timing
// TIMING: cse

// NESTED:      <pipeline>:1:24: error: triton 3{{.*}} runs 'cse' on builtin.module, its binding cannot run it on tt.func{{$}}
// NESTED-NEXT:{{^}}builtin.module(tt.func(cse)){{$}}
// NESTED-NEXT:{{^}}                       ^{{$}}

// FIXED: error: triton 3{{.*}} cannot run 'tritonamdgpu-canonicalize-pointers' with enable-large-tensor-ptr-canon=true: its binding always uses enable-large-tensor-ptr-canon=false
tt.func @f(%x: i32, %y: i32) -> (i32, i32) {
  %dead = arith.muli %x, %y : i32
  %a = arith.addi %x, %y : i32
  %b = arith.addi %x, %y : i32
  tt.return %a, %b : i32, i32
}

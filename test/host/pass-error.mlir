// REQUIRES: triton
// RUN: triton-opt %s --convert-triton-gpu-to-llvm=compute-capability=90 -verify-diagnostics
// RUN: not triton-opt %s --convert-triton-gpu-to-llvm=compute-capability=90 2>&1 | FileCheck %s

// What a pass reports stands at the operation; the module and the reproducer that Triton prints
// behind it are left out.

// CHECK:      pass-error.mlir:[[#@LINE+7]]:5: error: failed to legalize operation 'tt.return'
// CHECK-NEXT: {{^ *}}tt.return %x : i32
// CHECK-NEXT: {{^ *\^$}}
// CHECK-NOT:  {{.}}
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%x: i32) -> i32 {
    // expected-error @+1 {{failed to legalize operation 'tt.return'}}
    tt.return %x : i32
  }
}

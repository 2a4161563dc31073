// REQUIRES: triton
// RUN: triton-opt %s --run-reproducer -verify-diagnostics | FileCheck %s
// RUN: triton-opt %s --run-reproducer --dump-pass-pipeline 2>&1 >/dev/null | FileCheck %s --check-prefix=DUMP
// RUN: triton-opt -cse --dump-pass-pipeline 2>&1 >/dev/null </dev/null | FileCheck %s --check-prefix=CSE
// RUN: not triton-opt %s --run-reproducer -cse 2>&1 | FileCheck %s --check-prefix=TWICE

// The pipeline in the resources runs: of two equal sums one is left.

// CHECK:     arith.addi
// CHECK-NOT: arith.addi

// DUMP:      Pass Manager with 1 passes:
// DUMP-NEXT: builtin.module(any(cse))

// CSE:       Pass Manager with 1 passes:
// CSE-NEXT:  builtin.module(cse)

// TWICE: error: '--run-reproducer' cannot be used together with passes ('-cse')
module {
  tt.func @f(%x: i32) -> (i32, i32) {
    %a = arith.addi %x, %x : i32
    %b = arith.addi %x, %x : i32
    tt.return %a, %b : i32, i32
  }
}

{-#
  external_resources: {
    mlir_reproducer: {
      pipeline: "builtin.module(any(cse))",
      disable_threading: true,
      verify_each: true
    }
  }
#-}

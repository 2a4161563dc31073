// REQUIRES: triton
// RUN: triton-opt %s -cse | FileCheck %s --implicit-check-not='loc('
// RUN: triton-opt %s -cse --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s --check-prefix=DEBUG

// An operation without a location gets its place in the input.

// CHECK:      %[[SUM:.*]] = arith.addi %arg0, %arg0 : i32
// CHECK-NEXT: tt.return %[[SUM]] : i32

// DEBUG: arith.addi {{.*}} loc("kernel.py":7:3)
// DEBUG: tt.return {{.*}} loc("{{.*}}debuginfo.mlir":[[#@LINE+3]]:3)
tt.func @f(%x: i32) -> i32 {
  %y = arith.addi %x, %x : i32 loc("kernel.py":7:3)
  tt.return %y : i32
}

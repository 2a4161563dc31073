// Attributes that are no program ids, and a malformed operation.

// RUN: not triton-opt %s --host=none -test-tritonamdgpu-range-analysis -split-input-file 2>&1 | FileCheck %s

// CHECK: error: expected a non-negative integer as 'test.pid-bound-y', found '-1 : i32'
module attributes {"test.pid-bound-y" = -1 : i32} {
}

// -----

// CHECK: error: expected a non-negative integer as 'test.pid-bound-z', found '"many"'
module attributes {"test.pid-bound-z" = "many"} {
}

// -----

// CHECK: errors.mlir:[[@LINE+2]]:3: error: expected the integer attribute 'end' in 'tt.make_range'
tt.func @no_end() {
  %y = tt.make_range {start = 0 : i32} : tensor<8xi32>
  tt.return
}

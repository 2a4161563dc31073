// REQUIRES: triton
// RUN: not triton-opt %s -convert-triton-to-tritongpu="num-warps=3 target=cuda:80" 2>&1 | FileCheck %s

// An assertion of Triton's is one error that names the pass, behind what Triton said before it.

// CHECK:      error: {{.*}} must be a power of two
// CHECK-NEXT: abort.mlir: error: triton 3{{.*}} aborted while running 'convert-triton-to-tritongpu': Assertion {{.*}} failed{{.*$}}
// CHECK-NOT:  {{.}}
tt.func @range(%p: !tt.ptr<i32>) {
  %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
  tt.return
}

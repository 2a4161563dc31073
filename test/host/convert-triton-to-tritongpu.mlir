// REQUIRES: triton
// RUN: triton-opt %s -split-input-file -convert-triton-to-tritongpu="target=cuda:80 num-warps=2" | FileCheck %s
// RUN: triton-opt %s -split-input-file '--convert-triton-to-tritongpu={num-warps=2 target=cuda:80}' | FileCheck %s

// The options reach the pass: two warps, 32 threads each, the target of the module.

// CHECK: #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>
// CHECK: "ttg.num-warps" = 2 : i32
// CHECK-SAME: ttg.target = "cuda:80"
// CHECK: tt.make_range {{.*}} : tensor<128xi32, #blocked>
tt.func @range(%p: !tt.ptr<i32>) {
  %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
  %base = tt.splat %p : !tt.ptr<i32> -> tensor<128x!tt.ptr<i32>>
  %ptrs = tt.addptr %base, %r : tensor<128x!tt.ptr<i32>>, tensor<128xi32>
  tt.store %ptrs, %r : tensor<128x!tt.ptr<i32>>
  tt.return
}

// -----

// Each part is a module of its own.

// CHECK: // -----
// CHECK: tt.func @second
tt.func @second() {
  tt.return
}

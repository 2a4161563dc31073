// An atomic load whose result is used hands it to threads that hold the same elements, as every
// atomic with a result does; an atomic store hands on nothing.

// RUN: triton-opt %s --pass-provider=ext --allocate-shared-memory | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-shared-memory | FileCheck %s
// REQUIRES: triton-3.9-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// 4 warps hold the same 32 elements of 4 bytes.
// CHECK-LABEL: @tensor(
tt.func public @tensor(%p: tensor<32x!tt.ptr<i32>, #b>) {
  // CHECK: tt.atomic_load {{.*}}allocation.size = 128 : i32
  %0 = tt.atomic_load acquire, gpu, %p : (tensor<32x!tt.ptr<i32>, #b>) -> tensor<32xi32, #b>
  tt.store %p, %0 : tensor<32x!tt.ptr<i32>, #b>
  tt.return
}

// CHECK-LABEL: @scalar(
tt.func public @scalar(%p: !tt.ptr<i64>) {
  // CHECK: tt.atomic_load {{.*}}allocation.size = 8 : i32
  %0 = tt.atomic_load relaxed, gpu, %p : (!tt.ptr<i64>) -> i64
  tt.store %p, %0 : !tt.ptr<i64>
  tt.return
}

// CHECK-LABEL: @nothing(
tt.func public @nothing(%p: !tt.ptr<i32>, %x: i32) {
  // CHECK-NOT: allocation.size
  %0 = tt.atomic_load acquire, gpu, %p : (!tt.ptr<i32>) -> i32
  tt.atomic_store release, gpu, %p, %x : !tt.ptr<i32>
  tt.return
}
}

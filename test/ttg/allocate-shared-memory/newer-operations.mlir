// Operations of 3.9 that need memory while they run, and conversions that need none.

// RUN: triton-opt %s --allocate-shared-memory -split-input-file | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-shared-memory -split-input-file | FileCheck %s
// REQUIRES: triton-3.9-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// All threads want the element that one of them updates, if anybody asks.
// CHECK-LABEL: @local_atomic(
tt.func public @local_atomic(%i: tensor<1xi32, #b>, %v: tensor<1xi32, #b>) -> tensor<1xi32, #b> {
  %b = ttg.local_alloc : () -> !ttg.memdesc<1xi32, #s, #smem, mutable>
  // CHECK: ttg.local_atomic_scatter_rmw {{.*}}allocation.size = 4 : i32
  %0 = ttg.local_atomic_scatter_rmw add, %b[%i], %v {axis = 0 : i32} : (!ttg.memdesc<1xi32, #s, #smem, mutable>, tensor<1xi32, #b>, tensor<1xi32, #b>) -> tensor<1xi32, #b>
  // CHECK: ttg.local_atomic_scatter_rmw
  // CHECK-NOT: allocation.size
  %1 = ttg.local_atomic_scatter_rmw add, %b[%i], %v {axis = 0 : i32} : (!ttg.memdesc<1xi32, #s, #smem, mutable>, tensor<1xi32, #b>, tensor<1xi32, #b>) -> tensor<1xi32, #b>
  tt.return %0 : tensor<1xi32, #b>
}

// A byte tells whether it came in time; without a timeout it always does.
// CHECK-LABEL: @poll(
tt.func public @poll(%p: !tt.ptr<i32>, %v: i32, %t: i64) -> (i1, i1) {
  // CHECK: tt.atomic_poll {{.*}}allocation.size = 1 : i32
  %0 = tt.atomic_poll acquire, gpu, %p, %v timeout %t : !tt.ptr<i32>, i32 -> i1
  // CHECK: tt.atomic_poll
  // CHECK-NOT: allocation.size
  %1 = tt.atomic_poll acquire, gpu, %p, %v : !tt.ptr<i32>, i32 -> i1
  tt.return %0, %1 : i1, i1
}

// What the sanitizer of global memory makes of an atomic operation.
// CHECK-LABEL: @sanitized(
tt.func public @sanitized(%p: !tt.ptr<i64>, %v: i64) -> i64 {
  // CHECK: tti.experimental_gsan_atomic_cas {{.*}}allocation.size = 8 : i32
  %0 = tti.experimental_gsan_atomic_cas acq_rel, gpu, %p, %v, %v : (!tt.ptr<i64>, i64, i64) -> i64
  tt.return %0 : i64
}
}

// -----

#r = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [1, 1], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 1], order = [0, 1]}>
// CHECK: ttg.shared = 1024 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 1 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @forced(
tt.func public @forced(%x: tensor<16x16xi32, #r>) -> (tensor<16x16xi32, #c>, tensor<16x16xi32, #c>) {
  // CHECK: ttg.convert_layout {{.*}} {force_warp_shuffle}
  %0 = ttg.convert_layout %x {force_warp_shuffle} : tensor<16x16xi32, #r> -> tensor<16x16xi32, #c>
  // CHECK: ttg.convert_layout {{.*}}allocation.size = 1024 : i32
  %1 = ttg.convert_layout %x : tensor<16x16xi32, #r> -> tensor<16x16xi32, #c>
  tt.return %0, %1 : tensor<16x16xi32, #c>, tensor<16x16xi32, #c>
}
}

// -----

#h = #ttg.shared_linear<{offset = [[0, 1], [0, 0], [1, 0], [2, 0]]}, alignment = 16>
#smem = #ttg.shared_memory
// 8 elements of 4 bytes, one in two of 16 places.
// CHECK: ttg.shared = 64 : i32
module attributes {"ttg.num-warps" = 4 : i32} {
tt.func public @holes() {
  // CHECK: ttg.local_alloc {allocation.offset = 0 : i32}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<4x2xi32, #h, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<4x2xi32, #h, #smem, mutable>
  tt.return
}
}

// Copies from LDS on gfx1250 share ASYNCcnt with those to LDS, but the two retire out of order
// against each other: what is newer counts only if it moves in the awaited direction.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton-3.7-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Four instructions in flight may be those of the load.
// CHECK-LABEL: @store_behind_load(
tt.func public @store_behind_load(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512x!tt.ptr<f32>, #b>
  %g1 = ttg.async_commit_group tokens %1
  // HOST: amdg.async_wait {{.*}}num_inst = 4 :
  // EXT: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// A load and a store are awaited: 1 load is newer, and 1 store.
// CHECK-LABEL: @both_awaited(
tt.func public @both_awaited(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512x!tt.ptr<f32>, #b>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  %3 = amdg.async_copy_local_to_global %o, %q : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g3 = ttg.async_commit_group tokens %3
  // HOST: amdg.async_wait {{.*}}num_inst = 2 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait {num = 2 : i32}
  tt.return
}

// Of the newer group only its load counts.
// CHECK-LABEL: @load_awaited(
tt.func public @load_awaited(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %2 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512x!tt.ptr<f32>, #b>
  %g1 = ttg.async_commit_group tokens %1, %2
  // HOST: amdg.async_wait {{.*}}num_inst = 5 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// An earlier wait retired the store: the loads behind it decide.
// CHECK-LABEL: @store_retired(
tt.func public @store_retired(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512x!tt.ptr<f32>, #b>
  %g0 = ttg.async_commit_group tokens %0
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait {num = 0 : i32}
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: amdg.async_wait {{.*}}num_inst = 4 :
  %w1 = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

// gfx950 up to 3.7: copies share VMcnt with ordinary loads, and a wait counts instructions.
// A copy of %p is 2 instructions of a wave (512 elements of 32 bits, 256 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx950 | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx950 | FileCheck %s
// REQUIRES: triton-3.6 || triton-3.7

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// CHECK-LABEL: @by_number(
tt.func public @by_number(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<256x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<256xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait {num = 1 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 2 :
  %w1 = ttg.async_wait {num = 2 : i32}
  tt.return
}

// CHECK-LABEL: @by_token(
tt.func public @by_token(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<256x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<256xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: amdg.async_wait {{.*}}num_inst = 2 :
  %w0 = ttg.async_wait %g0 {num = 0 : i32}
  tt.return
}
}

// A branch that may be left out counts nothing.  The process of the pass of 3.6 dies of it.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s
// REQUIRES: triton-3.7-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Nothing is newer where the branch is not taken, the last group where it is.
// CHECK-LABEL: @token_behind_if(
tt.func public @token_behind_if(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  scf.if %c {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait %g0 {num = 0 : i32}
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w1 = ttg.async_wait %g0 {num = 0 : i32}
  tt.return
}
}

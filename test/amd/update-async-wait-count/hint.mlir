// What a person knows of the pointers: the lowering believes the hint, so that a copy of 64x64 elements
// is 4 instructions of a wave, of 8 elements each.  Upstream's pass of 3.6 and 3.7 leaves the hint out,
// counts 32, and lets the awaited copy itself pass.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: %if triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST %} %else %{ triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=arch-generation-name=gfx1250 | FileCheck %s --check-prefixes=CHECK,OLD %}
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @hint(
tt.func public @hint(%p: tensor<64x64x!tt.ptr<f16>, #b>, %m: !ttg.memdesc<64x64xf16, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, #b> -> <64x64xf16, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, #b> -> <64x64xf16, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  // OLD: amdg.async_wait {{.*}}num_inst = 32 :
  // HOST: amdg.async_wait {{.*}}num_inst = 4 :
  // EXT: amdg.async_wait {{.*}}num_inst = 4 :
  %w = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

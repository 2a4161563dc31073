// A tile with fewer elements than the workgroup has lanes: some waves need not copy anything.  From
// 3.8 on upstream's pass counts 0 as well.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: %if triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST %} %else %{ triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=arch-generation-name=gfx1250 | FileCheck %s --check-prefixes=CHECK,OLD %}
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// CHECK-LABEL: @redundant_waves(
tt.func public @redundant_waves(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %r: tensor<32x!tt.ptr<f32>, #b>, %l: !ttg.memdesc<32xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %r, %l : tensor<32x!tt.ptr<f32>, #b> -> <32xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // OLD: amdg.async_wait {{.*}}num_inst = 1 :
  // EXT: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

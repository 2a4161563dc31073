// A wave whose lanes are all masked out branches around a copy from LDS: it may issue nothing.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton-3.7-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// The awaited store is covered only if nothing is in flight.
// CHECK-LABEL: @masked_store(
tt.func public @masked_store(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %k: tensor<128xi1, #b>) {
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512x!tt.ptr<f32>, #b>
  %g0 = ttg.async_commit_group tokens %0
  %2 = amdg.async_copy_local_to_global %o, %q mask %k : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g2 = ttg.async_commit_group tokens %2
  // HOST: amdg.async_wait {{.*}}num_inst = 1 :
  // EXT: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

// Pointers through amdg.extract_slice.  The lowering knows that 8 elements lie side by side behind
// it, so that a copy of 64x64 elements is 4 instructions of a wave; upstream's pass does not know,
// counts 32, and lets the awaited copy itself pass.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#row = #ttg.slice<{dim = 0, parent = #b}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @slices(
tt.func public @slices(%ptr: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %m: !ttg.memdesc<64x64xf16, #s, #smem, mutable>) {
  %range = tt.make_range {start = 0 : i32, end = 64 : i32} : tensor<64xi32, #row>
  %row = tt.expand_dims %range {axis = 0 : i32} : tensor<64xi32, #row> -> tensor<1x64xi32, #b>
  %offsets = tt.broadcast %row : tensor<1x64xi32, #b> -> tensor<128x64xi32, #b>
  %base = tt.splat %ptr : !tt.ptr<f16> -> tensor<128x64x!tt.ptr<f16>, #b>
  %all = tt.addptr %base, %offsets : tensor<128x64x!tt.ptr<f16>, #b>, tensor<128x64xi32, #b>
  %p = amdg.extract_slice %all [0, 0] : tensor<128x64x!tt.ptr<f16>, #b> to tensor<64x64x!tt.ptr<f16>, #b>
  %q = amdg.extract_slice %all [64, 0] : tensor<128x64x!tt.ptr<f16>, #b> to tensor<64x64x!tt.ptr<f16>, #b>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b> -> <64x64xf16, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %m : tensor<64x64x!tt.ptr<f16>, #b> -> <64x64xf16, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  // HOST: amdg.async_wait {{.*}}num_inst = 32 :
  // EXT: amdg.async_wait {{.*}}num_inst = 4 :
  %w = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

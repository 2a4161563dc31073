// Fused loads of 3.9, and padded and partitioned buffers: a fused load is one instruction, whatever
// its members are.

// RUN: triton-opt %s --pass-provider=ext --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s
// REQUIRES: triton-3.9-or-newer

#rows = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [16, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [0, 1]}>}>
#all = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [64, 1], threadsPerWarp = [1, 32], warpsPerCTA = [1, 4], order = [0, 1]}>}>
#pad = #ttg.padded_shared<[64:+8] {order = [1, 0], shape = [64, 64]}>
#piece = #ttg.padded_shared<[64:+8] {order = [1, 0], shape = [4, 64]}>
#parts = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 8, partitionDim = 0, partitionLayout = #piece}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// A wave has 16 of 64 32-bit row numbers, two instructions; 64 of 16 bits, four; 16 pieces among 4
// waves, four.  From the newest back: 4, 5, 9, 11.
// CHECK-LABEL: @kinds(
tt.func public @kinds(%d: !tt.tensordesc<1x64xf16, #pad>, %e: !tt.tensordesc<64x64xf16, #parts>, %f: !tt.tensordesc<64x64xf16, #s>, %m: !ttg.memdesc<64x64xf16, #pad, #smem, mutable>, %n: !ttg.memdesc<64x64xf16, #parts, #smem, mutable>, %o: !ttg.memdesc<64x64xf16, #s, #smem, mutable>, %i: tensor<64xi32, #rows>, %j: tensor<64xi16, #all>, %c: i32) {
  %0 = amdg.async_tdm_gather %d[%i] to %m : tensor<64xi32, #rows>, !ttg.memdesc<64x64xf16, #pad, #smem, mutable> -> !tt.tensordesc<1x64xf16, #pad>
  %1 = amdg.async_tdm_gather %d[%j] to %m : tensor<64xi16, #all>, !ttg.memdesc<64x64xf16, #pad, #smem, mutable> -> !tt.tensordesc<1x64xf16, #pad>
  %2 = amdg.async_tdm_fused_copy_global_to_local %f, %f into %o, %o {warp_used_hints = array<i32: 3, 12>} : !tt.tensordesc<64x64xf16, #s>, !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>, !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %moved = amdg.update_tensor_descriptor %e add_offsets = [%c, %c] pred = %c : !tt.tensordesc<64x64xf16, #parts>
  %3 = amdg.async_tdm_copy_global_to_local %moved into %n : !tt.tensordesc<64x64xf16, #parts> -> !ttg.memdesc<64x64xf16, #parts, #smem, mutable>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 11 :
  %w4 = amdg.async_tdm_wait  {num = 4 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 9 :
  %w3 = amdg.async_tdm_wait  {num = 3 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 5 :
  %w2 = amdg.async_tdm_wait  {num = 2 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 4 :
  %w1 = amdg.async_tdm_wait  {num = 1 : i32}
  // Behind the fused load lie the 4 of the last one.
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 4 :
  %t = amdg.async_tdm_wait %2 {num = 0 : i32}
  tt.return
}
}

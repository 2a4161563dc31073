// How many instructions a load into pieces is depends on the waves that run it: those of its function
// where Gluon gave it a number, which it does for functions that partitions call.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s
// REQUIRES: triton-3.8-or-newer

#flat = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>
#pieces = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 8, partitionDim = 0, partitionLayout = #flat}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// 16 pieces on the 4 waves of the module are 4 instructions.
// CHECK-LABEL: @of_the_module(
tt.func private @of_the_module(%d: !tt.tensordesc<256x64xf16, #pieces>, %m: !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>) attributes {noinline = true} {
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<256x64xf16, #pieces> -> !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>
  %1 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<256x64xf16, #pieces> -> !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 4 :
  %w = amdg.async_tdm_wait  {num = 1 : i32}
  tt.return
}

// On 8 waves they are 2.
// CHECK-LABEL: @of_a_partition(
tt.func private @of_a_partition(%d: !tt.tensordesc<256x64xf16, #pieces>, %m: !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>) attributes {noinline = true, "ttg.num-warps" = 8 : i32} {
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<256x64xf16, #pieces> -> !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>
  %1 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<256x64xf16, #pieces> -> !ttg.memdesc<256x64xf16, #pieces, #smem, mutable>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 2 :
  %w = amdg.async_tdm_wait  {num = 1 : i32}
  tt.return
}
}

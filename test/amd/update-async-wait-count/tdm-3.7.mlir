// TDM operations as 3.7 spells them.  Its pass counts rows that other waves have, and lets too much
// pass.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton-3.7

#idx32 = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [64, 1], threadsPerWarp = [1, 32], warpsPerCTA = [1, 4], order = [0, 1]}>}>
#idx16 = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [256, 1], threadsPerWarp = [1, 32], warpsPerCTA = [1, 4], order = [0, 1]}>}>
#rows = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [16, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [0, 1]}>}>
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#s64 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#s256 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// A gather or scatter takes 8 rows of 32-bit indices an instruction, or 16 of 16-bit ones: 8 for 64
// rows, 16 for 256.  Behind the last operation lie 16, behind the last two 32, 40, and all 48.
// CHECK-LABEL: @rows(
tt.func public @rows(%d: !tt.tensordesc<tensor<1x64xf16, #s64>>, %d256: !tt.tensordesc<tensor<1x64xf16, #s256>>, %m: !ttg.memdesc<64x64xf16, #s64, #smem, mutable>, %m256: !ttg.memdesc<256x64xf16, #s256, #smem, mutable>, %i: tensor<64xi32, #idx32>, %j: tensor<256xi16, #idx16>, %k: tensor<64xi32, #rows>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %col: i32) {
  %0 = amdg.async_tdm_gather %d[%i, %col] to %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %1 = amdg.async_tdm_scatter %d[%i, %col] from %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %2 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %3 = amdg.async_tdm_scatter %d256[%j, %col] from %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 48 :
  %w4 = amdg.async_tdm_wait  {num = 4 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 40 :
  %w3 = amdg.async_tdm_wait  {num = 3 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 32 :
  %w2 = amdg.async_tdm_wait  {num = 2 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 16 :
  %w1 = amdg.async_tdm_wait  {num = 1 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 0 :
  %w0 = amdg.async_tdm_wait  {num = 0 : i32}
  tt.return
}

// The tensor data mover has a counter of its own: copies by address do not count for it, nor the
// other way round.
// CHECK-LABEL: @two_counters(
tt.func public @two_counters(%d: !tt.tensordesc<tensor<1x64xf16, #s64>>, %d256: !tt.tensordesc<tensor<1x64xf16, #s256>>, %m: !ttg.memdesc<64x64xf16, #s64, #smem, mutable>, %m256: !ttg.memdesc<256x64xf16, #s256, #smem, mutable>, %i: tensor<64xi32, #idx32>, %j: tensor<256xi16, #idx16>, %k: tensor<64xi32, #rows>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %col: i32) {
  %0 = amdg.async_tdm_gather %d[%i, %col] to %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %c0 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %c0
  %1 = amdg.async_tdm_gather %d[%i, %col] to %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %c1 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %c1
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 8 :
  %w = amdg.async_tdm_wait  {num = 1 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %v = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Tokens name the awaited operation, whatever `num` says.
// CHECK-LABEL: @tokens(
tt.func public @tokens(%d: !tt.tensordesc<tensor<1x64xf16, #s64>>, %d256: !tt.tensordesc<tensor<1x64xf16, #s256>>, %m: !ttg.memdesc<64x64xf16, #s64, #smem, mutable>, %m256: !ttg.memdesc<256x64xf16, #s256, #smem, mutable>, %i: tensor<64xi32, #idx32>, %j: tensor<256xi16, #idx16>, %k: tensor<64xi32, #rows>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %col: i32) {
  %0 = amdg.async_tdm_gather %d[%i, %col] to %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %1 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %2 = amdg.async_tdm_gather %d[%i, %col] to %m : tensor<64xi32, #idx32>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 24 :
  %w0 = amdg.async_tdm_wait %0 {num = 0 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 8 :
  %w1 = amdg.async_tdm_wait %1, %0 {num = 9 : i32}
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}count = 0 :
  %w2 = amdg.async_tdm_wait %2 {num = 9 : i32}
  tt.return
}

// The counter has 6 bits: 80 instructions cannot be told from 63.
// CHECK-LABEL: @six_bits(
tt.func public @six_bits(%d: !tt.tensordesc<tensor<1x64xf16, #s64>>, %d256: !tt.tensordesc<tensor<1x64xf16, #s256>>, %m: !ttg.memdesc<64x64xf16, #s64, #smem, mutable>, %m256: !ttg.memdesc<256x64xf16, #s256, #smem, mutable>, %i: tensor<64xi32, #idx32>, %j: tensor<256xi16, #idx16>, %k: tensor<64xi32, #rows>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %col: i32) {
  %0 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %1 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %2 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %3 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %4 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  %5 = amdg.async_tdm_gather %d256[%j, %col] to %m256 : tensor<256xi16, #idx16>, !ttg.memdesc<256x64xf16, #s256, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s256>>
  // HOST: amdg.async_tdm_intrinsic_wait {{.*}}count = 80 :
  // EXT: amdg.async_tdm_intrinsic_wait {{.*}}count = 63 :
  %w = amdg.async_tdm_wait  {num = 5 : i32}
  tt.return
}

// Each wave has 16 of the 64 rows: it issues 2 instructions, not 8.
// CHECK-LABEL: @rows_over_waves(
tt.func public @rows_over_waves(%d: !tt.tensordesc<tensor<1x64xf16, #s64>>, %d256: !tt.tensordesc<tensor<1x64xf16, #s256>>, %m: !ttg.memdesc<64x64xf16, #s64, #smem, mutable>, %m256: !ttg.memdesc<256x64xf16, #s256, #smem, mutable>, %i: tensor<64xi32, #idx32>, %j: tensor<256xi16, #idx16>, %k: tensor<64xi32, #rows>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %col: i32) {
  %0 = amdg.async_tdm_gather %d[%k, %col] to %m : tensor<64xi32, #rows>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  %1 = amdg.async_tdm_gather %d[%k, %col] to %m : tensor<64xi32, #rows>, !ttg.memdesc<64x64xf16, #s64, #smem, mutable> -> !tt.tensordesc<tensor<1x64xf16, #s64>>
  // HOST: amdg.async_tdm_intrinsic_wait {{.*}}count = 8 :
  // EXT: amdg.async_tdm_intrinsic_wait {{.*}}count = 2 :
  %w = amdg.async_tdm_wait  {num = 1 : i32}
  tt.return
}
}

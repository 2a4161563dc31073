// What Triton's own allocation gets wrong is aligned, so that it gets it right.

// RUN: triton-opt %s --triton-ext-align-partitioned-shared -split-input-file | FileCheck %s --check-prefixes=CHECK,%{blind}
// RUN: triton-opt %s --triton-ext-align-partitioned-shared=arch=gfx950 -split-input-file | FileCheck %s --check-prefixes=GFX950

// REQUIRES: triton-3.8-or-newer
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// 48 KiB in each of two partitions, twice: Triton 3.8 never ends. One value at the starts of
// partitions is enough: 212992 bytes, with both of them it would be 245760.
// CHECK-LABEL: @cannot_share(
// GFX950-LABEL: @cannot_share(
tt.func public @cannot_share() {
  // BLIND: local_alloc {alignment = 65536 : i32}
  // PLACED: local_alloc : ()
  // GFX950: local_alloc : ()
  %0 = ttg.local_alloc : () -> !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  // CHECK: local_alloc : ()
  // GFX950: local_alloc : ()
  %1 = ttg.local_alloc : () -> !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// These share their partitions: nothing is wrong, and nothing changes.
// CHECK-LABEL: @share(
// GFX950-LABEL: @share(
tt.func public @share() {
  // CHECK-COUNT-2: local_alloc : ()
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  %1 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 16, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// 34808 bytes, of which Triton reserves 34800: with every buffer at a multiple of 128, nothing can
// lie at 34800. An alignment that is larger already stays.
// CHECK-LABEL: @short(
// GFX950-LABEL: @short(
tt.func public @short() {
  // CHECK: local_alloc {alignment = 128 : i32}
  // GFX950: local_alloc {alignment = 128 : i32}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  // CHECK: local_alloc {alignment = 128 : i32}
  // GFX950: local_alloc {alignment = 128 : i32}
  %1 = ttg.local_alloc : () -> !ttg.memdesc<16x16xf16, #s, #smem, mutable>
  // CHECK: local_alloc {alignment = 256 : i32}
  // GFX950: local_alloc {alignment = 256 : i32}
  %2 = ttg.local_alloc {alignment = 256 : i32} : () -> !ttg.memdesc<16x16xf16, #s, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<16x16xf16, #s, #smem, mutable>
  ttg.local_dealloc %2 : !ttg.memdesc<16x16xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// A called function's memory may start inside of a partition.
// CHECK-LABEL: @callee(
// CHECK-SAME: noinline = false
tt.func private @callee() attributes {noinline = true} {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
// CHECK: @other() attributes {noinline = true}
tt.func private @other() attributes {noinline = true} {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #s, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #s, #smem, mutable>
  tt.return
}
tt.func public @kernel() {
  tt.call @callee() : () -> ()
  tt.call @other() : () -> ()
  tt.return
}
}

// Odd partitioned encodings: Triton reads their types, and so do we; no linear layout belongs to them.

// RUN: triton-opt %s --host=none -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -split-input-file -verify-diagnostics -o /dev/null

// REQUIRES: triton-3.8-or-newer

// Partitions of partitions.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#q = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #q}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A piece has half a row.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<4x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A piece of 16 rows, an encoding of 128.
#s = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [128, 32]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A piece of 16 rows, an encoding of 8.
#s = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [8, 32]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

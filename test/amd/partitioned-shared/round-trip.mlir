// Partitioned encodings as the host prints them, read and printed by both.

// RUN: triton-opt %s --host=none | FileCheck %s
// RUN: triton-opt %s --host=always | FileCheck %s
// REQUIRES: triton-3.8-or-newer

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>
// CHECK: #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #{{[a-z0-9]+}}}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
// CHECK: #ttg.partitioned_shared<{numPartitions = 4, numGroups = 1, partitionDim = 0, partitionLayout = #{{[a-z0-9]+}}}>
#q = #ttg.partitioned_shared<{numPartitions = 4, numGroups = 1, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  // CHECK: ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #{{[a-z0-9]+}}, #smem, mutable>
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  // CHECK: ttg.local_alloc : () -> !ttg.memdesc<3x64x64xf16, #{{[a-z0-9]+}}, #smem, mutable>
  %1 = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xf16, #q, #smem, mutable>
  tt.return
}
}

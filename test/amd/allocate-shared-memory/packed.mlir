// A GPU whose LDS is one piece: the buffers of a partitioned value lie side by side.

// RUN: triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx950 | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// CHECK: ttg.shared = 8192 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
tt.func public @kernel() {
  // CHECK: allocation.offset = [0 : i32, 4096 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

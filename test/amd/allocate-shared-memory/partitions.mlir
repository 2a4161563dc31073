// Partitioned values on gfx1250, whose LDS has physical partitions of 64 KiB: the buffers of one
// value never touch the same partition. Each takes shape x 2 bytes / numPartitions, and padding.

// RUN: triton-opt %s --host=none --allocate-amdgpu-shared-memory=arch=gfx1250 -split-input-file | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// The example of upstream: the second buffer starts the second partition.
// CHECK: ttg.shared = 69632 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @one(
tt.func public @one() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// Two that are alive at once share both partitions.
// CHECK: ttg.shared = 73728 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @two(
tt.func public @two() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  // CHECK: allocation.offset = [4096 : i32, 69632 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// What is not partitioned lies wherever there is room.
// CHECK: ttg.shared = 69632 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @beside_plain(
tt.func public @beside_plain() {
  // CHECK: allocation.offset = 0 : i32
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x32xf16, #s, #smem, mutable>
  // CHECK: allocation.offset = [32768 : i32, 65536 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x32xf16, #s, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// 64 KiB each: they fill their partitions.
// CHECK: ttg.shared = 131072 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @full(
tt.func public @full() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x128xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x128xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// 128 KiB each: they straddle two partitions each.
// CHECK: ttg.shared = 262144 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @straddle(
tt.func public @straddle() {
  // CHECK: allocation.offset = [0 : i32, 131072 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<1024x128xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<1024x128xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// 32 KiB each: both fit into one partition.
// CHECK: ttg.shared = 131072 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @halves(
tt.func public @halves() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  // CHECK: allocation.offset = [32768 : i32, 98304 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// 48 KiB each: two do not fit into one partition, so that the values take turns; the host of 3.8
// never ends here.
// CHECK: ttg.shared = 196608 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @cannot_share(
tt.func public @cannot_share() {
  // CHECK: allocation.offset = [0 : i32, 98304 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  // CHECK: allocation.offset = [49152 : i32, 147456 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<3x512x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 16, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
// Padding of 4 elements behind 64 each in a partition of 16 pieces of 16 x 64: 16384 elements and
// 255 x 4 of padding are 34808 bytes. Hosts reserve 34800, and put the second value right there.
// CHECK: ttg.shared = 100344 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @padded(
tt.func public @padded() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 16, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
// Two of them: 34816 is the next multiple of 16, and a partition has no room for both.
// CHECK: ttg.shared = 165880 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @padded_twice(
tt.func public @padded_twice() {
  // CHECK: allocation.offset = [0 : i32, 69632 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  // CHECK: allocation.offset = [34816 : i32, 131072 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<512x64xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 4, numGroups = 2, partitionDim = 0, partitionLayout = #s}>
#q = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 2, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// Four partitions, beside two.
// CHECK: ttg.shared = 200704 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @four(
tt.func public @four() {
  // CHECK: allocation.offset = [8192 : i32, 73728 : i32, 131072 : i32, 196608 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x64xf16, #p, #smem, mutable>
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %1 = ttg.local_alloc : () -> !ttg.memdesc<128x64xf16, #q, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<128x64xf16, #q, #smem, mutable>
  tt.return
}
}

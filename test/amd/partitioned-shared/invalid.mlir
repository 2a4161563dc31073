// Partitioned encodings that are none. Triton's own parser aborts on many of them, so that they are
// refused before it reads them, with the same words as without Triton.

// RUN: triton-opt %s --host=none -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -split-input-file -verify-diagnostics -o /dev/null

// No power of two.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected powers of two in 'numPartitions', found 3}}
#p = #ttg.partitioned_shared<{numPartitions = 3, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// One partition is none; Gluon's class allows it.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected 2 or more as 'numPartitions', found 1}}
#p = #ttg.partitioned_shared<{numPartitions = 1, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No partition.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected 2 or more as 'numPartitions', found 0}}
#p = #ttg.partitioned_shared<{numPartitions = 0, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A negative number.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected an unsigned integer for 'numPartitions', found '-2'}}
#p = #ttg.partitioned_shared<{numPartitions = -2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A number that is none.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected an unsigned integer for 'numPartitions', found 'true'}}
#p = #ttg.partitioned_shared<{numPartitions = true, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No power of two.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected powers of two in 'numGroups', found 3}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 3, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No group.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected powers of two in 'numGroups', found 0}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 0, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A list of groups.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected an unsigned integer for 'numGroups', found '[4]'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = [4], partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// There are dimensions 0 and 1.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected 'partitionDim' below the rank 2, found 2}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 2, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A negative dimension.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected an unsigned integer for 'partitionDim', found '-1'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = -1, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No number of partitions.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected the parameter 'numPartitions'}}
#p = #ttg.partitioned_shared<{numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No number of groups.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected the parameter 'numGroups'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// No encoding of a piece.
// expected-error @below {{the encoding '#p' is malformed: expected the parameter 'partitionLayout'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A number twice.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected 'numGroups' once}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s, numGroups = 2}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// Registers have no partitions.
#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
// expected-error @below {{the encoding '#p' is malformed: expected a shared encoding as 'partitionLayout', found '#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #b}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// A number is no encoding.
// expected-error @below {{the encoding '#p' is malformed: expected a shared encoding as 'partitionLayout', found '4'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = 4}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// Tensor memory has no partitions.
#t = #ttng.tensor_memory_encoding<blockM = 128, blockN = 32, colStride = 1>
// expected-error @below {{the encoding '#p' is malformed: expected a shared encoding as 'partitionLayout', found '#ttng.tensor_memory_encoding<blockM = 128, blockN = 32, colStride = 1>'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #t}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// The padding of a piece is wrong itself.
// expected-error @below {{the encoding '#s' is malformed: expected powers of two in 'interval', found 48}}
#s = #ttg.padded_shared<[48:+4] {order = [1, 0], shape = [16, 32]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// The ranks differ.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
// expected-error @below {{the type of '%0' at 'ttg.local_alloc' is malformed: expected rank 2 or, with a number of buffers in front, 3, found rank 4}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<2x4x128x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// The end is missing.
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
// expected-error @below {{expected '}', found '>'}}
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
}

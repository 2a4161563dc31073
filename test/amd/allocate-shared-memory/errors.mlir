// What does not fit, which Triton refuses when it loads the kernel, and what only Triton knows.

// RUN: triton-opt %s --host=none --allocate-amdgpu-shared-memory -split-input-file -verify-diagnostics -o /dev/null

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @too_large() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<1024x128xf16, #s, #smem, mutable>
  // expected-remark @below {{out of LDS of gfx1250: 'too_large' needs 393216 bytes, there are 327680, 65536 bytes are missing}}
  // expected-note @below {{what is alive at once takes 393216 bytes, wherever it lies}}
  // expected-note-re @below {{0 to 262144: '%0' of 262144 bytes, {{.*}}errors.mlir:9}}
  // expected-note-re @below {{262144 to 393216: '%1' of 131072 bytes, {{.*}}errors.mlir:14}}
  %1 = ttg.local_alloc : () -> !ttg.memdesc<512x128xf16, #s, #smem, mutable>
  ttg.local_dealloc %1 : !ttg.memdesc<512x128xf16, #s, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<1024x128xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 8, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @too_many() {
  // expected-warning @below {{expected at most 5 partitions, the number of gfx1250, found 8 in the encoding of '%0'}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x128xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x128xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [8, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 4], order = [0, 1]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// As all releases do it.
tt.func public @convert(%x: tensor<32x32xf16, #b>) {
  %0 = ttg.convert_layout %x : tensor<32x32xf16, #b> -> tensor<32x32xf16, #c>
  tt.return
}
}

// -----

#b = #ttg.slice<{dim = 0, parent = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [1, 4], order = [1, 0]}>}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// All lanes of a warp hold the same 4 elements; since 3.9 they hand results on by themselves.
tt.func public @atomic(%p: tensor<16x!tt.ptr<i32>, #b>, %v: tensor<16xi32, #b>) -> tensor<16xi32, #b> {
  // expected-error @below {{the shared memory that 'tt.atomic_rmw' needs while it runs is not known: Triton's releases differ, and which one compiles the module is not known}}
  // expected-note @below {{--pass-provider=host runs Triton's pass}}
  %0 = tt.atomic_rmw add, acq_rel, gpu, %p, %v : (tensor<16x!tt.ptr<i32>, #b>, tensor<16xi32, #b>) -> tensor<16xi32, #b>
  tt.return %0 : tensor<16xi32, #b>
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @aligned_to_nothing() {
  // expected-error @below {{expected a power of two as 'alignment', found 0 : i32}}
  %0 = ttg.local_alloc {alignment = 0 : i32} : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @aligned_to_less() {
  // expected-error @below {{expected a power of two as 'alignment', found -16 : i32}}
  %0 = ttg.local_alloc {alignment = -16 : i32} : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @aligned_to_a_word() {
  // expected-error @below {{expected a power of two as 'alignment', found "a"}}
  %0 = ttg.local_alloc {alignment = "a"} : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942", "ttg.threads-per-warp" = 64 : i32} {
tt.func public @without_partitions() {
  // expected-warning @below {{'%0' has 2 partitions, the LDS of gfx942 has none}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32} {
tt.func public @for_nobody_knows() {
  // expected-warning @below {{'%0' has 2 partitions, but the GPU is not known}}
  // expected-note @below {{set the option arch=gfx1250 or the module's 'ttg.target'}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// expected-error @below {{expected a power of two as 'ttg.threads-per-warp', found 32.5 : f32}}
module attributes {"ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32.5 : f32, ttg.target = "hip:gfx1250"} {
}

// -----

module attributes {"ttg.num-warps" = 0x4 : i32, ttg.target = "hip:gfx1250"} {
tt.func public @without_regions() {
  // expected-error @below {{expected a region 'default'}}
  ttg.warp_specialize()
  tt.return
}
}

// -----

module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
tt.func public @less_than_nothing() {
  // expected-error @below {{expected a number of bytes as 'allocation.size', found -5 : i32}}
  "other.op"() {allocation.size = -5 : i32} : () -> ()
  tt.return
}
}

// -----

#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
tt.func public @no_such_encoding() {
  // expected-error @below {{the type of '%0' cannot be read: undefined attribute alias '#s'}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.padded_shared<[128:+8] {order = [1, 7], shape = [32, 32]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
tt.func public @no_order() {
  // expected-error @below {{the type of '%0' cannot be read, in '#s': expected 'order' to permute the dimensions of (32, 32)}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
// What an operation of a newer Triton needs cannot be known, unless Triton's own pass has said it.
tt.func public @newer() {
  // expected-error @below {{the shared memory that 'ttg.newer_operation' needs while it runs is not known: no Triton that triton-ext supports has this operation}}
  // expected-note @below {{--pass-provider=host runs Triton's pass}}
  "ttg.newer_operation"() : () -> ()
  "ttg.newer_operation"() {allocation.size = 64 : i32} : () -> ()
  tt.return
}
}

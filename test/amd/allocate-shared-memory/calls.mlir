// A function's offsets count from where its caller put its memory, which is a partition's start if it
// has partitioned values: at 163840, which is two and a half partitions and where Triton puts it, the
// two buffers of 64 KiB both touch the fourth.

// What a function returns is kept for its caller, which Triton does not do.

// RUN: triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --allocate-amdgpu-shared-memory=arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton-3.8-or-newer

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
// CHECK: ttg.shared = 294912 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func private @callee() {
  // CHECK: allocation.offset = [0 : i32, 65536 : i32]
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x128xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<512x128xf16, #p, #smem, mutable>
  tt.return
}
tt.func public @kernel() {
  // EXT: allocation.offset = 131072 : i32
  // HOST: allocation.offset = 0 : i32
  %0 = ttg.local_alloc : () -> !ttg.memdesc<5x512x32xf16, #s, #smem, mutable>
  // EXT: tt.call @callee() {allocation.offset = 0 : i32, allocation.size = 131072 : i32} : () -> ()
  // HOST: tt.call @callee() {allocation.offset = 163840 : i32
  tt.call @callee() : () -> ()
  ttg.local_dealloc %0 : !ttg.memdesc<5x512x32xf16, #s, #smem, mutable>
  tt.return
}

tt.func private @giver(%x: tensor<32x32xf16, #b>) -> !ttg.memdesc<32x32xf16, #s, #smem, mutable> attributes {noinline = true} {
  // CHECK: ttg.local_alloc {{.*}} {allocation.offset = 0 : i32}
  %0 = ttg.local_alloc %x : (tensor<32x32xf16, #b>) -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return %0 : !ttg.memdesc<32x32xf16, #s, #smem, mutable>
}
tt.func private @taker(%x: tensor<32x32xf16, #b>) attributes {noinline = true} {
  // EXT: tt.call @giver({{.*}}) {allocation.offset = 2048 : i32, allocation.size = 2048 : i32}
  // HOST: tt.call @giver({{.*}}) {allocation.offset = 0 : i32
  %0 = tt.call @giver(%x) : (tensor<32x32xf16, #b>) -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  // EXT: ttg.local_alloc {{.*}} {allocation.offset = 0 : i32}
  // HOST: ttg.local_alloc {{.*}} {allocation.offset = 0 : i32}
  %1 = ttg.local_alloc %x : (tensor<32x32xf16, #b>) -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  %2 = ttg.local_load %0 : !ttg.memdesc<32x32xf16, #s, #smem, mutable> -> tensor<32x32xf16, #b>
  // EXT: ttg.local_alloc {{.*}} {allocation.offset = 2048 : i32}
  %3 = ttg.local_alloc %x : (tensor<32x32xf16, #b>) -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  %4 = ttg.local_load %1 : !ttg.memdesc<32x32xf16, #s, #smem, mutable> -> tensor<32x32xf16, #b>
  tt.return
}
}

// What only Triton knows is left to its pass of the same name: layouts that are not known, encodings
// that only Triton takes, and functions that are LLVM's already.

// RUN: triton-opt %s --allocate-shared-memory -split-input-file 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t
// RUN: triton-opt %s --canonicalize --allocate-shared-memory --canonicalize -split-input-file 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t
// RUN: not triton-opt %s --pass-provider=ext --allocate-shared-memory -split-input-file 2>&1 | FileCheck %s --check-prefix=EXT
// RUN: not triton-opt %s --keep-comments --allocate-shared-memory -split-input-file 2>&1 | FileCheck %s --check-prefix=EXT
// RUN: not triton-opt %s --allocate-shared-memory=capacity=4096 -split-input-file 2>&1 | FileCheck %s --check-prefix=EXT
// REQUIRES: triton-3.8-or-newer

// REMARK: triton-opt: remark: Triton's own 'allocate-shared-memory' runs on this module: the shared memory that 'tt.reduce' needs while it runs is not known
// EXT: left-to-host.mlir:22:3: error: the shared memory that 'tt.reduce' needs while it runs is not known
#m = #ttg.amd_mfma<{version = 0, warpsPerCTA = [4, 1], instrShape = [32, 32, 8], isTransposed = true}>
// CHECK: ttg.shared = 0 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 64 : i32} {
tt.func public @reduce(%x: tensor<64x32xf32, #m>) -> tensor<64xf32, #ttg.slice<{dim = 1, parent = #m}>> {
  // Lanes of a warp exchange it.
  // CHECK: "tt.reduce"
  // CHECK-NOT: allocation.offset
  %0 = "tt.reduce"(%x) <{axis = 1 : i32}> ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    tt.reduce.return %s : f32
  }) : (tensor<64x32xf32, #m>) -> tensor<64xf32, #ttg.slice<{dim = 1, parent = #m}>>
  tt.return %0 : tensor<64xf32, #ttg.slice<{dim = 1, parent = #m}>>
}
}

// -----

// REMARK: triton-opt: remark: Triton's own 'allocate-shared-memory' runs on this module: expected a 'partitionLayout' of the shape [4, 16]
#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 16]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 2, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @pieces() {
  // CHECK: ttg.local_alloc {allocation.offset = [0 : i32, {{[0-9]+}} : i32]}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<16x16xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<16x16xf16, #p, #smem, mutable>
  tt.return
}
}

// -----

// REMARK: triton-opt: remark: Triton's own 'allocate-shared-memory' runs on this module: the shared memory that 'ttg.local_alloc' needs
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
// CHECK: ttg.shared = 1024 : i32
module attributes {"ttg.num-warps" = 4 : i32} {
llvm.func @lowered() {
  // CHECK: ttg.local_alloc {allocation.offset = 0 : i32}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<256xi32, #s, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<256xi32, #s, #smem, mutable>
  llvm.return
}
}

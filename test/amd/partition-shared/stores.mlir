// Buffers that waves write with ttg.local_store; what control flow hands on; partitions of waves.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared -split-input-file | FileCheck %s

// REQUIRES: triton-3.8-or-newer

// A swizzled encoding stays that of a piece if padding is no better.
// CHECK: #ttg.partitioned_shared<{numPartitions = {{[24]}}, numGroups = {{[0-9]+}}, partitionDim = 0, partitionLayout = #{{.+}}}>
#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[1, 0], [2, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 8, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @handed_on(
// CHECK-SAME: %other:
tt.func public @handed_on(%x: tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>, %other: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>, %c: i1) {
  // CHECK: local_alloc : () -> !ttg.memdesc<64x64xf16, #partitioned_shared, #smem, mutable>
  // CHECK: local_alloc {{.*}} -> !ttg.memdesc<64x64xf16, #partitioned_shared, #smem, mutable>
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %b = ttg.local_alloc %x : (tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>) -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  ttg.local_store %x, %a : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  // CHECK: scf.if {{.*}} -> (!ttg.memdesc<64x64xf16, #partitioned_shared, #smem, mutable>)
  %m = scf.if %c -> (!ttg.memdesc<64x64xf16, #shared, #smem, mutable>) {
    // CHECK: scf.yield {{.*}} #partitioned_shared
    scf.yield %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  } else {
    scf.yield %b : !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  }
  // CHECK: ttg.warp_specialize
  // CHECK: partition0(%{{.+}}: !ttg.memdesc<64x64xf16, #partitioned_shared, #smem, mutable>) num_warps(4)
  // CHECK: : (!ttg.memdesc<64x64xf16, #partitioned_shared, #smem, mutable>) -> ()
  ttg.warp_specialize(%m)
  default {
    %y = ttg.local_load %m : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
    %d = tt.dot %y, %other, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
    ttg.warp_yield
  }
  partition0(%m_in: !ttg.memdesc<64x64xf16, #shared, #smem, mutable>) num_warps(4) {
    %z = ttg.local_load %m_in : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
    ttg.warp_return
  } : (!ttg.memdesc<64x64xf16, #shared, #smem, mutable>) -> ()
  tt.return
}
}

// Triton 3.6 has one kind of barrier.

// REQUIRES: triton-3.6
// RUN: triton-opt %s -test-print-membar | FileCheck %s

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  // CHECK: ttg.local_alloc
  // CHECK-NEXT: gpu.barrier
  // CHECK-NEXT: ttg.local_load
  tt.func @f(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc %x : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %0 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem> -> tensor<16x32xf16, #row>
    tt.return
  }
}

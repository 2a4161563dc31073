// LDS that the kernel may not take: everything stays where it was.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared=capacity=40000 -split-input-file -verify-diagnostics | FileCheck %s
// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared -split-input-file 2>/dev/null | FileCheck %s --check-prefix=ALL

// REQUIRES: triton-3.8-or-newer

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[1, 0], [2, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// The second partition starts at 65536.
// CHECK-NOT: partitioned_shared
// ALL: #ttg.partitioned_shared<{numPartitions = 2
tt.func public @full(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) {
  // expected-remark @below {{'%a' stays in one partition: the kernel would take 785}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xf16, #shared, #smem, mutable>
  %c0 = arith.constant 0 : i32
  %v = ttg.memdesc_index %a[%c0] : !ttg.memdesc<3x64x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %v : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  tt.return
}
}

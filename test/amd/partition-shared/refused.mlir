// Releases without the encoding are told which one has it.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s --host=none --triton-ext-partition-shared -split-input-file 2>/dev/null | FileCheck %s

// REQUIRES: triton
// UNSUPPORTED: triton-3.8-or-newer

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[1, 0], [2, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK: #partitioned_shared
tt.func public @refused(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) {
  // expected-error @below {{the Triton that compiles this does not know #ttg.partitioned_shared, which 'triton-ext-partition-shared' chose here; 3.8 is the first release with it}}
  // expected-note @below {{pip install 'triton>=3.8'}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  tt.return
}
}

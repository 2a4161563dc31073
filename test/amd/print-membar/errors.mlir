// An offset that is no number is an error at its operation.

// RUN: triton-opt %s --host=none -test-tritonamdgpu-membar -verify-diagnostics -o /dev/null

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 2048 : i32} {
  tt.func @text(%x: tensor<16x64xf16, #row>) {
    // expected-error @below {{expected a number of bytes, or one for each partition, as 'allocation.offset', found "0"}}
    %a = ttg.local_alloc %x {allocation.offset = "0"} : (tensor<16x64xf16, #row>) -> !ttg.memdesc<16x64xf16, #sh, #smem>
    tt.return
  }
}

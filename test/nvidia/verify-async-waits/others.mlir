// What ends at an mbarrier or at a wait of its own is not looked at, and a warning names it.

// RUN: triton-opt %s --host=none -split-input-file -verify-diagnostics -triton-ext-verify-async-waits

#s = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// One warning for all of them, at the first.
tt.func public @tma(%d: !tt.tensordesc<64x64xf16, #s>, %m: !ttg.memdesc<64x64xf16, #s, #smem, mutable>, %b: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %i: i32, %p: i1) {
  // expected-warning @below {{waits for 'ttng.async_tma_copy_global_to_local', 'ttng.async_tma_copy_local_to_global' are not checked: these end at mbarriers or at waits of their own}}
  // expected-note @below {{triton-ext-verify-async checks them in kernels for sm_90}}
  ttng.async_tma_copy_global_to_local %d[%i, %i] %m, %b, %p : !tt.tensordesc<64x64xf16, #s>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  ttng.async_tma_copy_global_to_local %d[%i, %i] %m, %b, %p : !tt.tensordesc<64x64xf16, #s>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  ttng.async_tma_copy_local_to_global %d[%i, %i] %m : !tt.tensordesc<64x64xf16, #s>, !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  tt.return
}
}

// -----

#s = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// mbarriers themselves, and fences, are no copies.
tt.func public @barriers(%b: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %i: i32) {
  ttng.init_barrier %b, 1 : !ttg.memdesc<1xi64, #bar, #smem, mutable>
  ttng.fence_async_shared {bCluster = false}
  ttng.wait_barrier %b, %i : !ttg.memdesc<1xi64, #bar, #smem, mutable>
  tt.return
}
}

// CTAs of a cluster meet where one accesses the memory of another; a GPU without clusters has none.

// RUN: triton-opt %s --host=none -test-print-membar -split-input-file | FileCheck %s

#nvmma = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[0, 0]]}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[1]]}>
#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0], CGALayout = [[1, 0]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", ttg.shared = 16392 : i32} {
  // The copy writes to both CTAs: their mbarriers are initialized first, and the memory of %x's
  // buffer, which the copy takes over, is left by both.
  // CHECK-LABEL: @multicast
  // CHECK: ttng.init_barrier
  // CHECK-NEXT: ttg.local_alloc %x
  // CHECK-NEXT: ttg.local_alloc
  // CHECK-NEXT: ttng.cluster_barrier{{$}}
  // CHECK-NEXT: ttng.fence_mbarrier_init_release_cluster
  // CHECK-NEXT: ttng.async_tma_copy_global_to_local
  // CHECK-NEXT: ttng.wait_barrier
  // CHECK-NEXT: ttng.cluster_barrier{{$}}
  // CHECK-NEXT: tt.return
  tt.func public @multicast(%desc: !tt.tensordesc<64x64xf16, #nvmma>, %x: tensor<64x64xf16, #row>, %i: i32, %p: i1) {
    %b = ttg.local_alloc {allocation.offset = 16384 : i32} : () -> !ttg.memdesc<2xi64, #bar, #smem, mutable>
    ttng.init_barrier %b, 1 : !ttg.memdesc<2xi64, #bar, #smem, mutable>
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<64x64xf16, #row>) -> !ttg.memdesc<64x64xf16, #nvmma, #smem>
    %c = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>
    ttng.async_tma_copy_global_to_local %desc[%i, %i] %c, %b, %p {multicast} : !tt.tensordesc<64x64xf16, #nvmma>, !ttg.memdesc<2xi64, #bar, #smem, mutable> -> !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>
    ttng.wait_barrier %b, %i deps %c : !ttg.memdesc<2xi64, #bar, #smem, mutable>, !ttg.memdesc<64x64xf16, #nvmma, #smem, mutable>
    tt.return
  }

  // A function that kernels call does not end with one.
  // CHECK-LABEL: @called
  // CHECK-NEXT: tt.return
  tt.func private @called() {
    tt.return
  }
}

// -----

module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:80"} {
  // CHECK-LABEL: @no_clusters
  // CHECK-NEXT: tt.return
  tt.func public @no_clusters() {
    tt.return
  }
}

// Modules whose accesses are in order stay byte for byte as they are.

// RUN: triton-opt %s --host=none --keep-comments -test-print-membar | diff %s -

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 4096 : i32} {
  // A barrier of the program is enough, and so is an atomic operation that releases.
  tt.func @in_order(%x: tensor<16x32xf16, #row>, %p: !tt.ptr<i32>, %i: i32) {
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    ttg.barrier local|global_read
    %0 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
    %old = tt.atomic_cas release, gpu, %p, %i, %i : (!tt.ptr<i32>, i32, i32) -> i32
    ttg.local_store %x, %a : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    tt.return
  }

  // Parts that have no element in common.
  tt.func @parts(%x: tensor<8x32xf16, #row>) {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    %top = ttg.memdesc_subslice %a[0, 0] : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> !ttg.memdesc<8x32xf16, #sh, #smem, mutable, 16x32>
    %bottom = ttg.memdesc_subslice %a[8, 0] : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> !ttg.memdesc<8x32xf16, #sh, #smem, mutable, 16x32>
    ttg.local_store %x, %top : tensor<8x32xf16, #row> -> !ttg.memdesc<8x32xf16, #sh, #smem, mutable, 16x32>
    %0 = ttg.local_load %bottom : !ttg.memdesc<8x32xf16, #sh, #smem, mutable, 16x32> -> tensor<8x32xf16, #row>
    tt.return
  }

  // Atomic additions of integers may change places where nobody asks for the old values.
  tt.func @additions(%x: tensor<16x32xi32, #row>) {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x32xi32, #sh, #smem, mutable>
    %0 = ttg.local_atomic_scatter_rmw add, %a[%x], %x {axis = 0 : i32} : (!ttg.memdesc<16x32xi32, #sh, #smem, mutable>, tensor<16x32xi32, #row>, tensor<16x32xi32, #row>) -> tensor<16x32xi32, #row>
    %1 = ttg.local_atomic_scatter_rmw add, %a[%x], %x {axis = 0 : i32} : (!ttg.memdesc<16x32xi32, #sh, #smem, mutable>, tensor<16x32xi32, #row>, tensor<16x32xi32, #row>) -> tensor<16x32xi32, #row>
    tt.return
  }
}

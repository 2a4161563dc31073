// Which buffers share memory, as Triton places them: the largest first, at the lowest free place.

// RUN: triton-opt %s -test-print-allocation -verify-diagnostics -o /dev/null

#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// What both branches use is alive in each of them; what they allocate is not at the same time.
// expected-remark @below {{branches}}
// expected-remark @below {{size = 6144}}
tt.func public @branches(%c: i1) {
  // expected-remark @below {{offset = 4096, size = 2048}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  scf.if %c {
    // expected-remark @below {{offset = 0, size = 4096}}
    %1 = ttg.local_alloc : () -> !ttg.memdesc<64x32xf16, #s, #smem, mutable>
    ttg.local_dealloc %1 : !ttg.memdesc<64x32xf16, #s, #smem, mutable>
  } else {
    // expected-remark @below {{offset = 0, size = 1024}}
    %2 = ttg.local_alloc : () -> !ttg.memdesc<16x32xf16, #s, #smem, mutable>
    ttg.local_dealloc %2 : !ttg.memdesc<16x32xf16, #s, #smem, mutable>
  }
  ttg.local_dealloc %0 : !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}

// Buffers that a loop exchanges live as long as it runs, by whatever name.
// expected-remark @below {{exchanged}}
// expected-remark @below {{size = 5120}}
tt.func public @exchanged(%lb: i32, %ub: i32, %step: i32) {
  // expected-remark @below {{offset = 0, size = 2048}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  // expected-remark @below {{offset = 2048, size = 2048}}
  %1 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  %2:2 = scf.for %i = %lb to %ub step %step iter_args(%x = %0, %y = %1) -> (!ttg.memdesc<32x32xf16, #s, #smem, mutable>, !ttg.memdesc<32x32xf16, #s, #smem, mutable>) : i32 {
    // expected-remark @below {{offset = 4096, size = 1024}}
    %3 = ttg.local_alloc : () -> !ttg.memdesc<16x32xf16, #s, #smem, mutable>
    ttg.local_dealloc %3 : !ttg.memdesc<16x32xf16, #s, #smem, mutable>
    scf.yield %y, %x : !ttg.memdesc<32x32xf16, #s, #smem, mutable>, !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  }
  tt.return
}

// A view keeps its buffer alive.
// expected-remark @below {{view}}
// expected-remark @below {{size = 6144}}
tt.func public @view(%i: i32) -> tensor<32x32xf16, #b> {
  // expected-remark @below {{offset = 0, size = 4096}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<2x32x32xf16, #s, #smem, mutable>
  %1 = ttg.memdesc_index %0[%i] : !ttg.memdesc<2x32x32xf16, #s, #smem, mutable> -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  // expected-remark @below {{offset = 4096, size = 2048}}
  %2 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  ttg.local_dealloc %2 : !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  %3 = ttg.local_load %1 : !ttg.memdesc<32x32xf16, #s, #smem, mutable> -> tensor<32x32xf16, #b>
  tt.return %3 : tensor<32x32xf16, #b>
}

// expected-remark @below {{callee}}
// expected-remark @below {{size = 2048}}
tt.func private @callee() {
  // expected-remark @below {{offset = 0, size = 2048}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}

// All of a called function's memory is one buffer of the call, a multiple of 128 away.
// expected-remark @below {{calls}}
// expected-remark @below {{size = 3072}}
tt.func public @calls() {
  // expected-remark @below {{offset = 2048, size = 1024}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<16x32xf16, #s, #smem, mutable>
  // expected-remark @below {{virtual offset = 0, size = 2048}}
  tt.call @callee() : () -> ()
  // expected-remark @below {{virtual offset = 0, size = 2048}}
  tt.call @callee() : () -> ()
  ttg.local_dealloc %0 : !ttg.memdesc<16x32xf16, #s, #smem, mutable>
  tt.return
}

// Partitions run at the same time: theirs never share, however they are ordered here. A byte for
// each of 3 warps, and the capture: a base of 8 bytes and 2 offsets of 4, which are read before a
// partition writes anything.
// expected-remark @below {{concurrent}}
// expected-remark @below {{scratch offset = 5120, size = 3}}
// expected-remark @below {{size = 5123}}
tt.func public @concurrent() {
  // expected-remark @below {{offset = 0, size = 2048}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  // expected-remark @below {{scratch offset = 2048, size = 16}}
  ttg.warp_specialize(%0) attributes {warpGroupStartIds = array<i32: 4, 6>}
  default {
    ttg.warp_yield
  }
  partition0(%x: !ttg.memdesc<32x32xf16, #s, #smem, mutable>) num_warps(2) {
    // expected-remark @below {{offset = 2048, size = 2048}}
    %1 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
    ttg.local_dealloc %1 : !ttg.memdesc<32x32xf16, #s, #smem, mutable>
    ttg.warp_return
  }
  partition1(%y: !ttg.memdesc<32x32xf16, #s, #smem, mutable>) num_warps(1) {
    // expected-remark @below {{offset = 4096, size = 1024}}
    %2 = ttg.local_alloc : () -> !ttg.memdesc<16x32xf16, #s, #smem, mutable>
    ttg.local_dealloc %2 : !ttg.memdesc<16x32xf16, #s, #smem, mutable>
    ttg.warp_return
  } : (!ttg.memdesc<32x32xf16, #s, #smem, mutable>) -> ()
  tt.return
}
}

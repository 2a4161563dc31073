// Offsets that cannot be read are errors at their operation.

// RUN: triton-opt %s --host=none -test-print-membar -split-input-file -verify-diagnostics -o /dev/null

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 4096 : i32} {
  tt.func @negative(%x: tensor<16x32xf16, #row>) {
    // expected-error @below {{expected a number of bytes, or one for each partition, as 'allocation.offset', found -8 : i32}}
    %a = ttg.local_alloc %x {allocation.offset = -8 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }
}

// -----

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 4096 : i32} {
  tt.func @several(%x: tensor<16x32xf16, #row>) {
    // expected-error @below {{expected a number of bytes as 'allocation.offset', found [0 : i32, 1024 : i32]}}
    %a = ttg.local_alloc %x {allocation.offset = [0 : i32, 1024 : i32]} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }
}

// -----

#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[0]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", ttg.shared = 8 : i32} {
  // expected-error @below {{expected a use of the mbarriers that are initialized, found none}}
  tt.func @unused() {
    %b = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<1xi64, #bar, #smem, mutable>
    ttng.init_barrier %b, 1 : !ttg.memdesc<1xi64, #bar, #smem, mutable>
    tt.return
  }
}

// -----

#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[0]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", ttg.shared = 8 : i32} {
  // expected-error @below {{expected a place behind every initialization of an mbarrier that other CTAs use, and in front of every use of it, found none}}
  tt.func @too_late(%phase: i32) {
    %b = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<1xi64, #bar, #smem, mutable>
    ttng.wait_barrier %b, %phase : !ttg.memdesc<1xi64, #bar, #smem, mutable>
    ttng.init_barrier %b, 1 : !ttg.memdesc<1xi64, #bar, #smem, mutable>
    tt.return
  }
}

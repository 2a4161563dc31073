// Every descriptor of shared memory names the allocations that it may refer to, as MLIR numbers
// them; the module stays as it is.

// RUN: triton-opt %s -test-print-alias -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -test-print-alias -split-input-file 2>/dev/null | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

// CHECK-LABEL: tt.func public @views
// CHECK-NEXT: %zero = arith.constant 0 : i32
// CHECK-NEXT: %ring = ttg.local_alloc : () -> !ttg.memdesc<2x64xi32, #s, #smem, mutable>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func public @views(%c: i1, %o: !ttg.memdesc<64xi32, #s, #smem, mutable>) {
    // MLIR names the constant %c0_i32, so that it takes no number.
    %zero = arith.constant 0 : i32
    // expected-remark @below {{%0 -> %0}}
    %ring = ttg.local_alloc : () -> !ttg.memdesc<2x64xi32, #s, #smem, mutable>
    // expected-remark @below {{%1 -> %0}}
    %stage = ttg.memdesc_index %ring[%zero] : !ttg.memdesc<2x64xi32, #s, #smem, mutable> -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%2 -> %2}}
    %other = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%3 -> %0,%2}}
    %either = arith.select %c, %stage, %other : !ttg.memdesc<64xi32, #s, #smem, mutable>
    // An argument may be any memory, and no allocation of this function.
    %given = ttg.memdesc_subslice %o[0] : !ttg.memdesc<64xi32, #s, #smem, mutable> -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%5 -> %2}}
    %mixed = arith.select %c, %given, %other : !ttg.memdesc<64xi32, #s, #smem, mutable>
    tt.return
  }
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  // Two buffers change places in each iteration. Values that the loop carries are printed as they start.
  tt.func public @loop(%n: index) {
    // expected-remark @below {{%0 -> %0}}
    %a = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%1 -> %1}}
    %b = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%arg2 -> %0}}
    // expected-remark @below {{%arg3 -> %1}}
    // expected-remark @below {{%2#0 -> %0,%1}}
    // expected-remark @below {{%2#1 -> %0,%1}}
    %r:2 = scf.for %i = %n to %n step %n iter_args(%x = %a, %y = %b) -> (!ttg.memdesc<64xi32, #s, #smem, mutable>, !ttg.memdesc<64xi32, #s, #smem, mutable>) {
      // expected-remark @below {{%4 -> %0,%1}}
      %v = ttg.memdesc_subslice %x[0] : !ttg.memdesc<64xi32, #s, #smem, mutable> -> !ttg.memdesc<64xi32, #s, #smem, mutable>
      scf.yield %y, %v : !ttg.memdesc<64xi32, #s, #smem, mutable>, !ttg.memdesc<64xi32, #s, #smem, mutable>
    }
    // Numbers of a loop's body start behind those of the block around it.
    // expected-remark @below {{%3 -> %3}}
    %d = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    tt.return
  }
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  // The arguments of a block stand at the branch that ends it; both edges of a branch count.
  tt.func public @blocks(%c: i1) {
    // expected-remark @below {{%0 -> %0}}
    %a = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%1 -> %1}}
    %b = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    cf.cond_br %c, ^next(%a : !ttg.memdesc<64xi32, #s, #smem, mutable>), ^next(%b : !ttg.memdesc<64xi32, #s, #smem, mutable>)
  ^next(%x: !ttg.memdesc<64xi32, #s, #smem, mutable>):
    // expected-remark @below {{%2 -> %0,%1}}
    cf.br ^last
  ^last:
    tt.return
  }

  // A function is looked at alone: what a call returns may be what it got.
  tt.func private @same(%x: !ttg.memdesc<64xi32, #s, #smem, mutable>) -> !ttg.memdesc<64xi32, #s, #smem, mutable>
  tt.func public @call() {
    // expected-remark @below {{%0 -> %0}}
    %a = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    // expected-remark @below {{%1 -> %0}}
    %r = tt.call @same(%a) : (!ttg.memdesc<64xi32, #s, #smem, mutable>) -> !ttg.memdesc<64xi32, #s, #smem, mutable>
    tt.return
  }
}

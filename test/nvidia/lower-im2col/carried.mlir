// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// A marker in a loop-carried value is a tuple in one slot: the slot gets the tuple's first value, and
// slots for the others are added behind the last one.  A start pixel of 3 values adds 2 slots.

// CHECK-NOT: triton_ext.markers

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @carried
// CHECK: scf.for %k = %c0 to %steps step %c1 iter_args(%phase = %c0, %px = %n, [[H:%.*]] = %h, [[W:%.*]] = %w) -> (i32, i32, i32, i32)
// CHECK: async_tma_copy_global_to_local %x[%px, [[H]], [[W]], %c] offsets
// CHECK: %h2 = arith.addi %h, %k : i32
// CHECK-NEXT: %other = arith.xori
// CHECK-NEXT: scf.yield %other, %n, %h2, %w : i32, i32, i32, i32
  tt.func public @carried(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %steps: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %first = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %last:2 = scf.for %k = %c0 to %steps step %c1 iter_args(%phase = %c0, %px = %first) -> (i32, i32)  : i32 {
      ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      %h2 = arith.addi %h, %k : i32
      %next = tt.extern_elementwise %n, %h2, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
      %other = arith.xori %phase, %c1 : i32
      scf.yield %other, %next : i32, i32
    }
    tt.return
  }

// A loop that only passes the marker on, with its load behind the loop.
// CHECK-LABEL: tt.func public @passed_through
// CHECK: [[LAST:%.*]]:3 = scf.for {{.*}} iter_args(%px = %n, [[H:%.*]] = %h, [[W:%.*]] = %w) -> (i32, i32, i32)
// CHECK-NEXT: scf.yield %px, [[H]], [[W]] : i32, i32, i32
// CHECK: async_tma_copy_global_to_local %x{{\[}}[[LAST]]#0, [[LAST]]#1, [[LAST]]#2, %c] offsets
  tt.func public @passed_through(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %steps: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %first = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %last = scf.for %k = %c0 to %steps step %c1 iter_args(%px = %first) -> (i32)  : i32 {
      scf.yield %px : i32
    }
    ttng.async_tma_copy_global_to_local %x[%last, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// Two loops, the inner one carries what the outer one carries.
// CHECK-LABEL: tt.func public @nested
// CHECK: scf.for {{.*}} iter_args(%px = %n, [[H:%.*]] = %h, [[W:%.*]] = %w) -> (i32, i32, i32)
// CHECK-NEXT: [[IN:%.*]]:3 = scf.for {{.*}} iter_args(%py = %px, [[H2:%.*]] = [[H]], [[W2:%.*]] = [[W]]) -> (i32, i32, i32)
// CHECK: async_tma_copy_global_to_local %x[%py, [[H2]], [[W2]], %c] offsets
// CHECK-NEXT: scf.yield %py, [[H2]], [[W2]] : i32, i32, i32
// CHECK: scf.yield [[IN]]#0, [[IN]]#1, [[IN]]#2 : i32, i32, i32
  tt.func public @nested(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %steps: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %first = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %outer = scf.for %i = %c0 to %steps step %c1 iter_args(%px = %first) -> (i32)  : i32 {
      %inner = scf.for %k = %c0 to %steps step %c1 iter_args(%py = %px) -> (i32)  : i32 {
        ttng.async_tma_copy_global_to_local %x[%py, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
        scf.yield %py : i32
      }
      scf.yield %inner : i32
    }
    tt.return
  }
}

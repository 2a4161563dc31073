// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// What the software pipeliner leaves of a loop over 9 filter taps with two stages: a prologue whose
// marker has constant operands, and a steady loop that loads one tap ahead, predicated.

// CHECK-NOT: triton_ext.markers

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @pipelined
// CHECK: [[R0:%.*]] = arith.trunci %c0 : i32 to i16
// CHECK-NEXT: [[S0:%.*]] = arith.trunci %c0 : i32 to i16
// CHECK-NEXT: async_tma_copy_global_to_local %x[%n, %h, %w, %c0] offsets = {{\[}}[[R0]], [[S0]]] %buf, %bar, %pred
// CHECK: scf.for
// CHECK: %s = arith.remsi
// CHECK-NEXT: [[R:%.*]] = arith.trunci %r : i32 to i16
// CHECK-NEXT: [[S:%.*]] = arith.trunci %s : i32 to i16
// CHECK-NEXT: async_tma_copy_global_to_local %x[%n, %h, %w, %c0] offsets = {{\[}}[[R]], [[S]]] %buf, %bar, %more
  tt.func public @pipelined(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %c8 = arith.constant 8 : i32
    %c9 = arith.constant 9 : i32
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch0 = tt.extern_elementwise %c0, %c0, %c0 {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch0] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    scf.for %k = %c0 to %c9 step %c1  : i32 {
      %more = arith.cmpi slt, %k, %c8 : i32
      %next = arith.addi %k, %c1 : i32
      %r = arith.divsi %next, %c3 : i32
      %s = arith.remsi %next, %c3 : i32
      %ch = tt.extern_elementwise %c0, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %more : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    }
    tt.return
  }
}

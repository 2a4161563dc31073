// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// A marker that comes out of scf.if or arith.select: each of its values is chosen the same way.

// CHECK-NOT: triton_ext.markers

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @branch
// CHECK: [[PX:%.*]]:3 = scf.if %flag -> (i32, i32, i32) {
// CHECK-NEXT: scf.yield %n, %h, %w : i32, i32, i32
// CHECK-NEXT: } else {
// CHECK-NEXT: %h1 = arith.subi
// CHECK-NEXT: scf.yield %n, %h1, %w : i32, i32, i32
// CHECK: async_tma_copy_global_to_local %x{{\[}}[[PX]]#0, [[PX]]#1, [[PX]]#2, %c] offsets
  tt.func public @branch(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %flag: i1) {
    %c1 = arith.constant 1 : i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %px = scf.if %flag -> (i32) {
      %a = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
      scf.yield %a : i32
    } else {
      %h1 = arith.subi %h, %c1 : i32
      %b = tt.extern_elementwise %n, %h1, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
      scf.yield %b : i32
    }
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// CHECK-LABEL: tt.func public @select
// CHECK: %px = arith.select %flag, %n, %n : i32
// CHECK: [[H:%.*]] = arith.select %flag, %h, %h1 : i32
// CHECK: [[W:%.*]] = arith.select %flag, %w, %w : i32
// CHECK: async_tma_copy_global_to_local %x[%px, [[H]], [[W]], %c] offsets
  tt.func public @select(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %h1: i32, %c: i32, %r: i32, %s: i32, %flag: i1) {
    %a = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %b = tt.extern_elementwise %n, %h1, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %px = arith.select %flag, %a, %b : i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// The channel and its offsets can be chosen too.
// CHECK-LABEL: tt.func public @channel_select
// CHECK: %ch = arith.select %flag, %c, %c : i32
// CHECK: [[A:%.*]] = arith.select %flag, %r, %s : i32
// CHECK: [[B:%.*]] = arith.select %flag, %s, %r : i32
// CHECK: [[R:%.*]] = arith.trunci [[A]] : i32 to i16
// CHECK-NEXT: [[S:%.*]] = arith.trunci [[B]] : i32 to i16
// CHECK-NEXT: async_tma_copy_global_to_local %x[%n, %h, %w, %ch] offsets = {{\[}}[[R]], [[S]]]
  tt.func public @channel_select(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %flag: i1) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %a = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %b = tt.extern_elementwise %c, %s, %r {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %ch = arith.select %flag, %a, %b : i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// A marker that stands at its load: the copy gets the markers' operands, coordinates outermost first
// and the filter offsets as i16; the descriptor becomes an im2col descriptor.

// CHECK-NOT: triton_ext.markers

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// The TMA unit counts [n, h, w, c] and two offsets [r, s] for a tensor of rank 4.
// CHECK-LABEL: tt.func public @rank4
// CHECK-SAME: %x: !ttng.tensordesc_im2col<128x64xf16, #shared>
// CHECK-NEXT: [[R:%.*]] = arith.trunci %r : i32 to i16
// CHECK-NEXT: [[S:%.*]] = arith.trunci %s : i32 to i16
// CHECK-NEXT: ttng.async_tma_copy_global_to_local %x[%n, %h, %w, %c] offsets = {{\[}}[[R]], [[S]]] %buf, %bar, %pred : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
// CHECK-NEXT: tt.return
  tt.func public @rank4(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// Rank 3: one spatial dimension, one offset.
// CHECK-LABEL: tt.func public @rank3
// CHECK: [[S:%.*]] = arith.trunci %s : i32 to i16
// CHECK-NEXT: async_tma_copy_global_to_local %x[%n, %w, %c] offsets = {{\[}}[[S]]] %buf
  tt.func public @rank3(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %w: i32, %c: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// Rank 5: three spatial dimensions, three offsets.
// CHECK-LABEL: tt.func public @rank5
// CHECK: [[T:%.*]] = arith.trunci %t : i32 to i16
// CHECK-NEXT: [[R:%.*]] = arith.trunci %r : i32 to i16
// CHECK-NEXT: [[S:%.*]] = arith.trunci %s : i32 to i16
// CHECK-NEXT: async_tma_copy_global_to_local %x[%n, %d, %h, %w, %c] offsets = {{\[}}[[T]], [[R]], [[S]]] %buf
  tt.func public @rank5(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %d: i32, %h: i32, %w: i32, %c: i32, %t: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %d, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %t, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// Attributes that other passes left on the copy stay.
// CHECK-LABEL: tt.func public @attributes
// CHECK: async_tma_copy_global_to_local %x[%n, %h, %w, %c] offsets = [{{.*}}] %buf, %bar, %pred {async_task_id = array<i32: 0>} : !ttng.tensordesc_im2col
  tt.func public @attributes(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {async_task_id = array<i32: 0>, libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred {async_task_id = array<i32: 0>} : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// Equal markers are one operation after CSE; both loads get its operands.
// CHECK-LABEL: tt.func public @two_loads
// CHECK: async_tma_copy_global_to_local %x[%n, %h, %w, %c] offsets
// CHECK: async_tma_copy_global_to_local %x[%n, %h, %w, %c] offsets
  tt.func public @two_loads(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch0 = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %ch1 = tt.extern_elementwise %c, %s, %r {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch0] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_global_to_local %x[%px, %ch1] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// A marker that nobody uses goes away; the descriptor is not touched.
// CHECK-LABEL: tt.func public @dead
// CHECK-SAME: %x: !tt.tensordesc<128x64xf16, #shared>
// CHECK-NEXT: tt.return
  tt.func public @dead(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    tt.return
  }
}

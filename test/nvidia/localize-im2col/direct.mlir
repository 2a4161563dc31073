// RUN: triton-opt %s --triton-ext-localize-im2col | FileCheck %s
// As 3.6 and 3.7 spell descriptors.
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir --triton-ext-localize-im2col | sed -E 's/(tensordesc)<tensor<([^<>]*)>>/\1<\2>/g' | FileCheck %s

// Each copy gets markers of its own in front of it, whose symbols say how many operands they have;
// the copy and its descriptor stay tiled, and the markers that were there before go.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @outside
// CHECK-NEXT: scf.for
// CHECK-NEXT: [[P:%.*]] = tt.extern_elementwise %n, %h, %w {{.*}}symbol = "triton_ext.im2col.pixel.3"
// CHECK-NEXT: [[C:%.*]] = tt.extern_elementwise %c, %r, %s {{.*}}symbol = "triton_ext.im2col.channel.3"
// CHECK-NEXT: ttng.async_tma_copy_global_to_local %x{{\[}}[[P]], [[C]]] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>
// CHECK-NEXT: [[P:%.*]] = tt.extern_elementwise %n, %h, %w
// CHECK-NEXT: [[C:%.*]] = tt.extern_elementwise %c, %s, %r
// CHECK-NEXT: ttng.async_tma_copy_global_to_local %x{{\[}}[[P]], [[C]]]
// CHECK-NEXT: }
// CHECK-NEXT: tt.return
  tt.func public @outside(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %other = tt.extern_elementwise %c, %s, %r {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    scf.for %i = %n to %h step %w : i32 {
      ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      ttng.async_tma_copy_global_to_local %x[%px, %other] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    }
    tt.return
  }

// One function of LLVM IR has one type: ranks have symbols of their own.
// CHECK-LABEL: tt.func public @ranks
// CHECK: symbol = "triton_ext.im2col.pixel.2"
// CHECK: symbol = "triton_ext.im2col.channel.2"
// CHECK: symbol = "triton_ext.im2col.pixel.4"
// CHECK: symbol = "triton_ext.im2col.channel.4"
  tt.func public @ranks(%x: !tt.tensordesc<128x64xf16, #shared>, %y: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %d: i32, %h: i32, %w: i32, %c: i32) {
    %p1 = tt.extern_elementwise %n, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32) -> i32
    %c1 = tt.extern_elementwise %c, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%p1, %c1] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    %p3 = tt.extern_elementwise %n, %d, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32, i32) -> i32
    %c3 = tt.extern_elementwise %c, %d, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %y[%p3, %c3] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// What is in this form already stays in it.
// CHECK-LABEL: tt.func public @again
// CHECK-NEXT: tt.extern_elementwise %n, %h, %w {{.*}}symbol = "triton_ext.im2col.pixel.3"
// CHECK-NEXT: tt.extern_elementwise %c, %r, %s {{.*}}symbol = "triton_ext.im2col.channel.3"
// CHECK-NEXT: ttng.async_tma_copy_global_to_local
// CHECK-NEXT: tt.return
  tt.func public @again(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel.3"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel.3"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// The host cuts a block of more than 256 pixels into several boxes, all of which are in one im2col
// copy: the symbol says how many pixels that are, of one CTA.
// CHECK-LABEL: tt.func public @tall
// CHECK: symbol = "triton_ext.im2col.pixel.2.512"
// CHECK-NEXT: symbol = "triton_ext.im2col.channel.2"
  tt.func public @tall(%x: !tt.tensordesc<512x64xf16, #shared>, %buf: !ttg.memdesc<512x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<512x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<512x64xf16, #shared, #smem, mutable>
    tt.return
  }

// CHECK-LABEL: tt.func public @tall_again
// CHECK: symbol = "triton_ext.im2col.pixel.2.512"
// CHECK-NEXT: symbol = "triton_ext.im2col.channel.2"
  tt.func public @tall_again(%x: !tt.tensordesc<512x64xf16, #shared>, %buf: !ttg.memdesc<512x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel.2.512"} : (i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel.2"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<512x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<512x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

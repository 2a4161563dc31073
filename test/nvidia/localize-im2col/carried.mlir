// RUN: triton-opt %s --triton-ext-localize-im2col | FileCheck %s
// As 3.6 and 3.7 spell descriptors.
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir --triton-ext-localize-im2col | sed -E 's/(tensordesc)<tensor<([^<>]*)>>/\1<\2>/g' | FileCheck %s

// A marker that a loop carries, or that is chosen, is carried and chosen value by value; the marker is
// made where it is read.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @loop
// CHECK: scf.for {{.*}} iter_args(%px = %n, [[H:%.*]] = %h, [[W:%.*]] = %w) -> (i32, i32, i32)
// CHECK-NEXT: [[P:%.*]] = tt.extern_elementwise %px, [[H]], [[W]] {{.*}}pixel.3"
// CHECK-NEXT: [[C:%.*]] = tt.extern_elementwise %c, %i, %c {{.*}}channel.3"
// CHECK-NEXT: async_tma_copy_global_to_local %x{{\[}}[[P]], [[C]]]
// CHECK-NEXT: scf.yield %n, %i, %w : i32, i32, i32
  tt.func public @loop(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %start = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %end = scf.for %i = %n to %h step %w iter_args(%px = %start) -> (i32) : i32 {
      %ch = tt.extern_elementwise %c, %i, %c {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      %next = tt.extern_elementwise %n, %i, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
      scf.yield %next : i32
    }
    tt.return
  }

// CHECK-LABEL: tt.func public @select
// CHECK: %px = arith.select %flag, %n, %n : i32
// CHECK: [[H:%.*]] = arith.select %flag, %h, %w : i32
// CHECK: [[W:%.*]] = arith.select %flag, %w, %h : i32
// CHECK: [[P:%.*]] = tt.extern_elementwise %px, [[H]], [[W]] {{.*}}pixel.3"
// CHECK: async_tma_copy_global_to_local %x{{\[}}[[P]],
  tt.func public @select(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %flag: i1) {
    %a = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %b = tt.extern_elementwise %n, %w, %h {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %c, %c {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %px = arith.select %flag, %a, %b : i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

// A loop that carries a marker around a select: each of them is expanded once.
// CHECK-LABEL: tt.func public @around
// CHECK: iter_args(%px = %n, {{.*}} -> (i32, i32, i32)
// CHECK-COUNT-3: arith.select
// CHECK-NOT: arith.select
  tt.func public @around(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %flag: i1) {
    %start = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %other = tt.extern_elementwise %n, %w, %h {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %end = scf.for %i = %n to %h step %w iter_args(%px = %start) -> (i32) : i32 {
      %ch = tt.extern_elementwise %c, %i, %c {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      %next = arith.select %flag, %px, %other : i32
      scf.yield %next : i32
    }
    tt.return
  }
}

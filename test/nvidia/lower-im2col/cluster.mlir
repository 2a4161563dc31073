// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// A cluster of two CTAs shares 128 pixels: CTA 1 starts 64 pixels further on the walk.  What
// Triton's lowering adds to w for it, 64 * rank, is taken off again.

#pixels = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[1, 0]]}>
#channels = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[0, 1]]}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[1]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @pixels
// CHECK: [[RANK:%.*]] = tt.elementwise_inline_asm "mov.u32 $0, %cluster_ctarank;" {constraints = "=r", packed_element = 1 : i32, pure = true} -> i32
// CHECK: arith.divsi [[RANK]]
// CHECK: [[BIT:%.*]] = arith.remsi
// CHECK: [[C64:%.*]] = arith.constant 64 : i32
// CHECK: [[OWN:%.*]] = arith.muli [[BIT]], [[C64]]
// CHECK: [[FIRST:%.*]] = arith.addi {{.*}}, [[OWN]]
// The digit of w, plus the CTA's first pixel, carries into h; that carries into n.
// CHECK: [[X:%.*]] = arith.addi %w, %pw
// CHECK: [[P:%.*]] = arith.divsi [[X]], %sw
// CHECK: [[T:%.*]] = arith.addi [[P]], [[FIRST]]
// CHECK: [[CARRY:%.*]] = arith.divsi [[T]], %ow
// CHECK: [[Q:%.*]] = arith.remsi [[T]], %ow
// CHECK: [[WS:%.*]] = arith.muli [[Q]], %sw
// CHECK: [[W:%.*]] = arith.subi [[WS]], %pw
// CHECK: arith.addi %h, %ph
// CHECK: arith.addi {{.*}}, [[CARRY]]
// CHECK: [[CARRY2:%.*]] = arith.divsi {{.*}}, %oh
// CHECK: [[H:%.*]] = arith.subi {{.*}}, %ph
// CHECK: [[N:%.*]] = arith.addi %n, [[CARRY2]]
// CHECK: [[W2:%.*]] = arith.subi [[W]], [[FIRST]]
// CHECK: async_tma_copy_global_to_local %x{{\[}}[[N]], [[H]], [[W2]], %c] offsets
  tt.func public @pixels(%x: !tt.tensordesc<128x64xf16, #pixels>, %buf: !ttg.memdesc<128x64xf16, #pixels, #smem, mutable>, %bar: !ttg.memdesc<2xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %oh: i32, %ow: i32, %sh: i32, %sw: i32, %ph: i32, %pw: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w, %oh, %ow, %sh, %sw, %ph, %pw {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32, i32, i32, i32, i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #pixels>, !ttg.memdesc<2xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #pixels, #smem, mutable>
    tt.return
  }

// Channels that are split need nothing: the walk is the same in each CTA, with or without its sizes.
// CHECK-LABEL: tt.func public @channels
// CHECK-NOT: elementwise_inline_asm
// CHECK: async_tma_copy_global_to_local %x[%n, %w, %c] offsets
  tt.func public @channels(%x: !tt.tensordesc<128x128xf16, #channels>, %buf: !ttg.memdesc<128x128xf16, #channels, #smem, mutable>, %bar: !ttg.memdesc<2xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %w: i32, %ow: i32, %sw: i32, %pw: i32, %c: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %w, %ow, %sw, %pw {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x128xf16, #channels>, !ttg.memdesc<2xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x128xf16, #channels, #smem, mutable>
    tt.return
  }
}

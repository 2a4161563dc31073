// RUN: triton-opt %s --triton-ext-localize-im2col --split-input-file --verify-diagnostics

// No box has room for more than 1024 pixels.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @rows(%x: !tt.tensordesc<2048x64xf16, #shared>, %buf: !ttg.memdesc<2048x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{this im2col load has 2048 pixels per CTA, TMA has 1024 at most}}
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<2048x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<2048x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @number(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{is used by 'arith.muli': it is not a number}}
    %two = arith.muli %px, %px : i32
    tt.return
  }
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @both(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    // expected-error @+1 {{is read with load_im2col and also used by}}
    ttng.async_tma_copy_global_to_local %x[%n, %c] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A first channel that is not at a multiple of 16 bytes: 8 channels of 16 bits.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @channel(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %s: i32) {
    %c = arith.constant 12 : i32
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %s, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{starts at channel 12 of 2-byte elements, expected a multiple of 8}}
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

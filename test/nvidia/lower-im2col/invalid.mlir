// RUN: triton-opt %s --triton-ext-lower-im2col -split-input-file -verify-diagnostics
// RUN: triton-opt --host=none %s --triton-ext-lower-im2col -split-input-file -verify-diagnostics
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir --triton-ext-lower-im2col -split-input-file -verify-diagnostics

// In both spellings of descriptors, with and without Triton.

// Whatever cannot be lowered exactly is an error at its line.  Here the operations have no location, so
// that is the line of the input; in a compile it is the line of the user's source.

// A marker is no number.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @arithmetic(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{is used by 'arith.addi': it is not a number}}
    %sum = arith.addi %px, %n : i32
    tt.return
  }
}

// -----

// A marker that is passed on, but to no load.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @never_loaded(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %flag: i1) {
    // expected-error @+1 {{never meets a load}}
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %py = tt.extern_elementwise %n, %w, %h {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %chosen = arith.select %flag, %px, %py : i32
    tt.return
  }
}

// -----

// 3 values of a start pixel are n and 2 spatial dimensions, which need 2 filter offsets.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @rank(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    // expected-error @+1 {{a start pixel of 3 values meets 1 filter offsets}}
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A number beside a marker.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @one_index(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{only one of the two indices of this load}}
    ttng.async_tma_copy_global_to_local %x[%px, %c] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// The pixel belongs first, the channel second.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @swapped(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{and can only be passed to a load}}
    ttng.async_tma_copy_global_to_local %x[%ch, %px] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A tensor map is either tiled or im2col.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @both_ways(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    // expected-error @+1 {{the descriptor %x is read with load_im2col and also used by}}
    ttng.async_tma_copy_global_to_local %x[%n, %c] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A value that is a pixel on one way and a channel on the other.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @two_kinds(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %flag: i1) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %p = arith.select %flag, %px, %ch : i32
    // expected-error @+1 {{(channel and offsets of 3 values) is used by 'ttng.async_tma_copy_global_to_local'}}
    ttng.async_tma_copy_global_to_local %x[%p, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A marker on one way, a number on the other.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // expected-error @+1 {{the im2col position %n comes from 'tt.func' on one of its paths, not from load_im2col}}
  tt.func public @half_a_marker(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %flag: i1) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %p = arith.select %flag, %px, %n : i32
    ttng.async_tma_copy_global_to_local %x[%p, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// A marker of another release.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @unknown_marker(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    // expected-error @+1 {{unknown marker 'triton_ext.im2col.future'}}
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.future"} : (i32, i32, i32) -> i32
    tt.return
  }
}

// -----

// A descriptor that is not a kernel argument cannot be given an im2col tensor map.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @chosen_descriptor(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32, %flag: i1, %z: !tt.tensordesc<128x64xf16, #shared>) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    %d = arith.select %flag, %x, %z : !tt.tensordesc<128x64xf16, #shared>
    // expected-error @+1 {{needs a descriptor that is a kernel argument}}
    ttng.async_tma_copy_global_to_local %d[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// CGALayout [[1, 0]]: the second CTA starts half a tile of pixels further, which no start pixel says.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[1, 0]]}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[0]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @split_pixels(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    // expected-error @+1 {{num_ctas > 1 splits the pixels}}
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// TTIR, where a load is another operation.

tt.func public @ttir(%x: !tt.tensordesc<128x64xf16>, %n: i32, %h: i32, %w: i32) {
  %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
  // expected-error @+1 {{this module is TTIR: an im2col position goes to 'tt.descriptor_load', and the pass runs on TTGIR}}
  %tile = tt.descriptor_load %x[%px, %n] : !tt.tensordesc<128x64xf16> -> tensor<128x64xf16>
  tt.return
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

// -----

// A position of another type.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @of_64_bits(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i64, %w: i32) {
    // expected-error @+1 {{operand 1 of an im2col position has the type 'i64'; positions are of 'i32' values}}
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i64, i32) -> i32
    %ch = tt.extern_elementwise %w, %n, %n {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

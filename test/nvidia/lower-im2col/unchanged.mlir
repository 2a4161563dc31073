// RUN: triton-opt %s --triton-ext-lower-im2col -keep-comments | diff %s -

// Nothing of ours: not one byte changes, neither a tiled load, nor a foreign extern function, nor
// comments and spacing.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // own-line comment
  tt.func public @tiled(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %i: i32, %j: i32) {
    ttng.async_tma_copy_global_to_local %x[%i, %j] %buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }

  tt.func public @foreign(%v: i32) -> i32   attributes {noinline = false} {

    %y = tt.extern_elementwise %v {libname = "libdevice", libpath = "", pure = true, symbol = "__nv_abs"} : (i32) -> i32 // same line
    tt.return %y : i32
  }
}

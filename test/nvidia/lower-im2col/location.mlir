// RUN: not triton-opt %s --triton-ext-lower-im2col 2>&1 | FileCheck %s

// The error stands at the innermost source position of the operation, not at the text of the IR.

// CHECK: kernel.py:21:9: error: an im2col position (start pixel of 3 values) is used by 'arith.addi'

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @located(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32 loc(#loc1)
    %sum = arith.addi %px, %n : i32 loc(#loc3)
    tt.return
  }
}
#loc1 = loc("kernel.py":20:5)
#loc2 = loc("kernel.py":21:9)
#loc3 = loc("sum"(callsite(#loc2 at #loc1)))

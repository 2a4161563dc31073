// RUN: triton-opt %s --triton-ext-localize-im2col | FileCheck %s
// As 3.6 and 3.7 spell descriptors.
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir --triton-ext-localize-im2col | sed -E 's/(tensordesc)<tensor<([^<>]*)>>/\1<\2>/g' | FileCheck %s

// Warp specialization hands a captured value over through shared memory, where LLVM cannot follow it:
// the marker's operands are captured in its place, and the marker is made in the partition.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @captured
// CHECK: ttg.warp_specialize(%x, %buf, %bar, %pred, %n, %c, %h, %w)
// CHECK: partition0(%arg0: !tt.tensordesc<128x64xf16, #shared>, {{.*}}, %arg4: i32, %arg5: i32, [[H:%.*]]: i32, [[W:%.*]]: i32) num_warps(1)
// CHECK-NEXT: [[P:%.*]] = tt.extern_elementwise %arg4, [[H]], [[W]] {{.*}}pixel.3"
// CHECK-NEXT: [[C:%.*]] = tt.extern_elementwise %arg5, %arg5, %arg5 {{.*}}channel.3"
// CHECK-NEXT: async_tma_copy_global_to_local %arg0{{\[}}[[P]], [[C]]] %arg1
// CHECK: i32, i32, i32, i32) -> ()
  tt.func public @captured(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    ttg.warp_specialize(%x, %buf, %bar, %pred, %px, %c)
    default {
      ttg.warp_yield
    }
    partition0(%arg0: !tt.tensordesc<128x64xf16, #shared>, %arg1: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %arg3: i1, %arg4: i32, %arg5: i32) num_warps(1) {
      %ch = tt.extern_elementwise %arg5, %arg5, %arg5 {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %arg0[%arg4, %ch] %arg1, %arg2, %arg3 : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      ttg.warp_return
    } : (!tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, !ttg.memdesc<1xi64, #bar, #smem, mutable>, i1, i32, i32) -> ()
    tt.return
  }
}

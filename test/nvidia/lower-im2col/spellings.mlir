// RUN: triton-opt --host=none %s --triton-ext-lower-im2col | FileCheck %s
// RUN: %if triton-3.8-or-newer %{ triton-opt --host=always %s --triton-ext-lower-im2col | FileCheck %s %}
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir --triton-ext-lower-im2col | FileCheck %s
// RUN: %if triton-3.7 %{ triton-opt --host=always %t.mlir --triton-ext-lower-im2col | FileCheck %s %}
// RUN: triton-opt --host=none %s --triton-ext-lower-im2col --triton-ext-lower-im2col | FileCheck %s

// Tiled and im2col descriptors through one pass, in the spelling of Triton 3.8 and newer, and in that of
// 3.7 (the block as a tensor): %x is read with markers and becomes an im2col descriptor of the same block,
// in the same spelling; %y is tiled and stays.  What has become im2col stays too, when the pass runs again.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared1 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#shared2 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#shared3 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 4}>
#shared4 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 5}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // [n, w, c], one filter offset.
  // CHECK-LABEL: tt.func public @rank3
  // CHECK-SAME:    ([[X:%[a-z0-9]+]]: !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>{{>?}}, [[Y:%[a-z0-9]+]]: !tt.tensordesc<{{(tensor<)?}}2x8x64xf16, #shared1>{{>?}},
  // CHECK:         [[S:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local [[X]]{{\[%[a-z0-9]+, %[a-z0-9]+, %[a-z0-9]+]}} offsets = {{\[}}[[S]]] {{.*}} : !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local [[Y]]{{\[%[a-z0-9]+, %[a-z0-9]+, %[a-z0-9]+]}} %{{.*}} : !tt.tensordesc<{{(tensor<)?}}2x8x64xf16, #shared1>
  tt.func public @rank3(%x: !tt.tensordesc<128x64xf16, #shared>, %y: !tt.tensordesc<2x8x64xf16, #shared1>, %x_buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %y_buf: !ttg.memdesc<2x8x64xf16, #shared1, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #shared2, #smem, mutable>, %pred: i1, %n: i32, %w: i32, %c: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %x_buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #shared2, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_global_to_local %y[%n, %w, %c] %y_buf, %bar, %pred : !tt.tensordesc<2x8x64xf16, #shared1>, !ttg.memdesc<1xi64, #shared2, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared1, #smem, mutable>
    tt.return
  }

  // [n, h, w, c], two filter offsets.
  // CHECK-LABEL: tt.func public @rank4
  // CHECK-SAME:    ([[X:%[a-z0-9]+]]: !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>{{>?}}, [[Y:%[a-z0-9]+]]: !tt.tensordesc<{{(tensor<)?}}1x2x8x64xf16, #shared3>{{>?}},
  // CHECK:         [[R:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    [[S:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local [[X]]{{\[(%[a-z0-9]+, ){3}%[a-z0-9]+]}} offsets = {{\[}}[[R]], [[S]]] {{.*}} : !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>
  // CHECK-NEXT:    ttng.async_tma_copy_local_to_global [[Y]]{{\[(%[a-z0-9]+, ){3}%[a-z0-9]+]}} %{{.*}} : !tt.tensordesc<{{(tensor<)?}}1x2x8x64xf16, #shared3>
  tt.func public @rank4(%x: !tt.tensordesc<128x64xf16, #shared>, %y: !tt.tensordesc<1x2x8x64xf16, #shared3>, %x_buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %y_buf: !ttg.memdesc<1x2x8x64xf16, #shared3, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #shared2, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32, %c: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %x_buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #shared2, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_local_to_global %y[%n, %h, %w, %c] %y_buf : !tt.tensordesc<1x2x8x64xf16, #shared3>, !ttg.memdesc<1x2x8x64xf16, #shared3, #smem, mutable>
    tt.return
  }

  // [n, d, h, w, c], three filter offsets.
  // CHECK-LABEL: tt.func public @rank5
  // CHECK-SAME:    ([[X:%[a-z0-9]+]]: !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>{{>?}}, [[Y:%[a-z0-9]+]]: !tt.tensordesc<{{(tensor<)?}}1x1x2x8x64xf16, #shared4>{{>?}},
  // CHECK:         [[T:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    [[R:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    [[S:%.+]] = arith.trunci %{{.*}} : i32 to i16
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local [[X]]{{\[(%[a-z0-9]+, ){4}%[a-z0-9]+]}} offsets = {{\[}}[[T]], [[R]], [[S]]] {{.*}} : !ttng.tensordesc_im2col<{{(tensor<)?}}128x64xf16, #shared>
  // CHECK-NEXT:    ttng.async_tma_reduce add, [[Y]]{{\[(%[a-z0-9]+, ){4}%[a-z0-9]+]}} %{{.*}} : !tt.tensordesc<{{(tensor<)?}}1x1x2x8x64xf16, #shared4>
  tt.func public @rank5(%x: !tt.tensordesc<128x64xf16, #shared>, %y: !tt.tensordesc<1x1x2x8x64xf16, #shared4>, %x_buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %y_buf: !ttg.memdesc<1x1x2x8x64xf16, #shared4, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #shared2, #smem, mutable>, %pred: i1, %n: i32, %d: i32, %h: i32, %w: i32, %c: i32, %t: i32, %r: i32, %s: i32) {
    %px = tt.extern_elementwise %n, %d, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32, i32) -> i32
    %ch = tt.extern_elementwise %c, %t, %r, %s {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32, i32) -> i32
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %x_buf, %bar, %pred : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #shared2, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_reduce add, %y[%n, %d, %h, %w, %c] %y_buf : !tt.tensordesc<1x1x2x8x64xf16, #shared4>, !ttg.memdesc<1x1x2x8x64xf16, #shared4, #smem, mutable>
    tt.return
  }
}

// RUN: triton-opt %s --triton-ext-lower-im2col | FileCheck %s

// Partitions see nothing but what they capture.  A captured descriptor changes its type in every
// partition and in the list of types; a captured marker is a tuple: its capture gets the first value,
// and captures for the others are added behind the last one, in every partition alike.

// CHECK-NOT: triton_ext.markers

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: tt.func public @captured
// CHECK-SAME: %x: !ttng.tensordesc_im2col<128x64xf16, #shared>
// CHECK-NEXT: ttg.warp_specialize(%x, %n, %buf, %bar, %h, %w)
// CHECK: partition0(%x2: !ttng.tensordesc_im2col<128x64xf16, #shared>, %p2: i32, %buf2: {{.*}}, %bar2: {{[^,]*, [^,]*, [^,]*, [^,]*}}, [[H:%[^:]*]]: i32, [[W:%[^:]*]]: i32) num_warps(1)
// CHECK: async_tma_copy_global_to_local %x2[%p2, [[H]], [[W]], %c0] offsets = {{.*}} : !ttng.tensordesc_im2col<128x64xf16, #shared>
// CHECK: partition1(%x2: !ttng.tensordesc_im2col<128x64xf16, #shared>, %p2: i32, {{.*}}: i32, {{.*}}: i32) num_warps(1)
// CHECK: } : (!ttng.tensordesc_im2col<128x64xf16, #shared>, i32, {{.*}}, i32, i32) -> ()
  tt.func public @captured(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    %px = tt.extern_elementwise %n, %h, %w {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
    ttg.warp_specialize(%x, %px, %buf, %bar)
    default {
      ttg.warp_yield
    }
    partition0(%x2: !tt.tensordesc<128x64xf16, #shared>, %p2: i32, %buf2: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar2: !ttg.memdesc<1xi64, #bar, #smem, mutable>) num_warps(1) {
      %true = arith.constant true
      %c0 = arith.constant 0 : i32
      %ch = tt.extern_elementwise %c0, %c0, %c0 {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %x2[%p2, %ch] %buf2, %bar2, %true : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      ttg.warp_return
    }
    partition1(%x2: !tt.tensordesc<128x64xf16, #shared>, %p2: i32, %buf2: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar2: !ttg.memdesc<1xi64, #bar, #smem, mutable>) num_warps(1) {
      ttg.warp_return
    } : (!tt.tensordesc<128x64xf16, #shared>, i32, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, !ttg.memdesc<1xi64, #bar, #smem, mutable>) -> ()
    tt.return
  }

// The marker is made inside the partition: only the descriptor is captured.  Partitions use names of
// the function again for other values, so names are looked up per region.
// CHECK-LABEL: tt.func public @marker_inside
// CHECK: ttg.warp_specialize(%x, %n, %h, %w, %buf, %bar)
// CHECK: partition0(%x2: !ttng.tensordesc_im2col<128x64xf16, #shared>, %n2: i32, %h2: i32, %w2: i32,
// CHECK: async_tma_copy_global_to_local %x2[%n2, %h2, %w2, %c0] offsets
  tt.func public @marker_inside(%x: !tt.tensordesc<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %pred: i1, %n: i32, %h: i32, %w: i32) {
    ttg.warp_specialize(%x, %n, %h, %w, %buf, %bar)
    default {
      ttg.warp_yield
    }
    partition0(%x2: !tt.tensordesc<128x64xf16, #shared>, %n2: i32, %h2: i32, %w2: i32, %buf2: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar2: !ttg.memdesc<1xi64, #bar, #smem, mutable>) num_warps(1) {
      %true = arith.constant true
      %c0 = arith.constant 0 : i32
      %px = tt.extern_elementwise %n2, %h2, %w2 {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.pixel"} : (i32, i32, i32) -> i32
      %ch = tt.extern_elementwise %c0, %c0, %c0 {libname = "triton_ext.markers", libpath = "", pure = true, symbol = "triton_ext.im2col.channel"} : (i32, i32, i32) -> i32
      ttng.async_tma_copy_global_to_local %x2[%px, %ch] %buf2, %bar2, %true : !tt.tensordesc<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
      ttg.warp_return
    } : (!tt.tensordesc<128x64xf16, #shared>, i32, i32, i32, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, !ttg.memdesc<1xi64, #bar, #smem, mutable>) -> ()
    tt.return
  }
}

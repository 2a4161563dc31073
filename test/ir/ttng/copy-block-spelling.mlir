// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton-3.8-or-newer %{ triton-opt --host=always %s | FileCheck %s %}

// Both kinds of descriptors as Triton 3.8 and newer spell them.  A tiled copy has one coordinate for each
// dimension of the block; an im2col copy has one for each dimension of the tensor, whose rank the type
// does not say, and one offset for each spatial one.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#shared1 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 4}>
#shared2 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 5}>
#shared3 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared4 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: tt.func @tiled_rank3
  // CHECK-SAME:    %arg0: !tt.tensordesc<2x8x64xf16, #shared>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, [[BAR:#shared[0-9]*]], #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  // CHECK-NEXT:    ttng.async_tma_copy_local_to_global %arg0[%arg4, %arg4, %arg4] %arg1 : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.func @tiled_rank3(%arg0: !tt.tensordesc<2x8x64xf16, #shared>, %arg1: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #shared4, #smem, mutable>, %arg3: i1, %arg4: i32) {
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_local_to_global %arg0[%arg4, %arg4, %arg4] %arg1 : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
    tt.return
  }

  // CHECK-LABEL: tt.func @tiled_rank4
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<1x2x8x64xf16, [[R4:#shared[0-9]*]]>, {{.*}} -> !ttg.memdesc<1x2x8x64xf16, [[R4]], #smem, mutable>
  tt.func @tiled_rank4(%arg0: !tt.tensordesc<1x2x8x64xf16, #shared1>, %arg1: !ttg.memdesc<1x2x8x64xf16, #shared1, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #shared4, #smem, mutable>, %arg3: i1, %arg4: i32) {
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<1x2x8x64xf16, #shared1>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<1x2x8x64xf16, #shared1, #smem, mutable>
    tt.return
  }

  // Dimensions of size 1 may be dropped in shared memory.
  // CHECK-LABEL: tt.func @tiled_rank5
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<1x1x1x16x64xf16, [[R5:#shared[0-9]*]]>, {{.*}} -> !ttg.memdesc<16x64xf16, [[R2:#shared[0-9]*]], #smem, mutable>
  tt.func @tiled_rank5(%arg0: !tt.tensordesc<1x1x1x16x64xf16, #shared2>, %arg1: !ttg.memdesc<16x64xf16, #shared3, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #shared4, #smem, mutable>, %arg3: i1, %arg4: i32) {
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] %arg1, %arg2, %arg3 : !tt.tensordesc<1x1x1x16x64xf16, #shared2>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<16x64xf16, #shared3, #smem, mutable>
    tt.return
  }

  // [n, w, c], [n, h, w, c] and [n, d, h, w, c].
  // CHECK-LABEL: tt.func @im2col
  // CHECK-SAME:    %arg0: !ttng.tensordesc_im2col<128x64xf16, [[R2]]>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] offsets = [%arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, [[R2]]>, !ttg.memdesc<1xi64, [[BAR]], #smem, mutable> -> !ttg.memdesc<128x64xf16, [[R2]], #smem, mutable>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, [[R2]]>, !ttg.memdesc<1xi64, [[BAR]], #smem, mutable> -> !ttg.memdesc<128x64xf16, [[R2]], #smem, mutable>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, [[R2]]>, !ttg.memdesc<1xi64, [[BAR]], #smem, mutable> -> !ttg.memdesc<128x64xf16, [[R2]], #smem, mutable>
  tt.func @im2col(%arg0: !ttng.tensordesc_im2col<128x64xf16, #shared3>, %arg1: !ttg.memdesc<128x64xf16, #shared3, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #shared4, #smem, mutable>, %arg3: i1, %arg4: i32, %arg5: i16) {
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] offsets = [%arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, #shared3>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared3, #smem, mutable>
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, #shared3>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared3, #smem, mutable>
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<128x64xf16, #shared3>, !ttg.memdesc<1xi64, #shared4, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared3, #smem, mutable>
    tt.return
  }
}

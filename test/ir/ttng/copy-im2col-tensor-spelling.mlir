// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton-3.7 %{ triton-opt --host=always %s | FileCheck %s %}

// Im2col descriptors as Triton 3.7 spells them.  The block is pixels x channels whatever the rank of the
// tensor: a copy has one coordinate for each dimension of the tensor, and one offset for each spatial one.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: tt.func @every_rank
  // CHECK-SAME:    %arg0: !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>
  // [n, w, c], [n, h, w, c] and [n, d, h, w, c].
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] offsets = [%arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  // CHECK-NEXT:    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.func @every_rank(%arg0: !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, %arg1: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %arg2: !ttg.memdesc<1xi64, #shared1, #smem, mutable>, %arg3: i1, %arg4: i32, %arg5: i16) {
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4] offsets = [%arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    ttng.async_tma_copy_global_to_local %arg0[%arg4, %arg4, %arg4, %arg4, %arg4] offsets = [%arg5, %arg5, %arg5] %arg1, %arg2, %arg3 : !ttng.tensordesc_im2col<tensor<128x64xf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    tt.return
  }
}

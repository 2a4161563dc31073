// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton %{ triton-opt --host=always %s | FileCheck %s %}

// Layouts and shared memory: read, verified and printed as they are, by us and by Triton.

// CHECK:      #blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK-NEXT: #blocked1 = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 4], order = [0, 1]}>
// CHECK-NEXT: #shared = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 4, order = [1, 0]}>
// CHECK-NEXT: #smem = #ttg.shared_memory
// CHECK:      module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-NEXT:   tt.func @ttg(%arg0: tensor<32x32x!tt.ptr<f16>, #blocked>, %arg1: tensor<32x32xf16, #blocked>) {
// CHECK-NEXT:     %c0_i32 = arith.constant 0 : i32
// CHECK-NEXT:     %0 = ttg.convert_layout %arg1 : tensor<32x32xf16, #blocked> -> tensor<32x32xf16, #blocked1>
// CHECK-NEXT:     %1 = ttg.local_alloc : () -> !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable>
// CHECK-NEXT:     %2 = ttg.memdesc_index %1[%c0_i32] : !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable> -> !ttg.memdesc<32x32xf16, #shared, #smem, mutable>
// CHECK-NEXT:     %3 = ttg.async_copy_global_to_local %arg0, %2 : tensor<32x32x!tt.ptr<f16>, #blocked> -> <32x32xf16, #shared, #smem, mutable>
// CHECK-NEXT:     %4 = ttg.async_commit_group tokens %3
// CHECK-NEXT:     %5 = ttg.async_wait %4 {num = 0 : i32}
// CHECK-NEXT:     %6 = ttg.local_load %2 token %5 : !ttg.memdesc<32x32xf16, #shared, #smem, mutable> -> tensor<32x32xf16, #blocked>
// CHECK-NEXT:     ttg.local_store %6, %2 : tensor<32x32xf16, #blocked> -> !ttg.memdesc<32x32xf16, #shared, #smem, mutable>
// CHECK-NEXT:     ttg.local_dealloc %1 : !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable>
// CHECK-NEXT:     tt.return
// CHECK-NEXT:   }
// CHECK-NEXT: }
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 4], order = [0, 1]}>
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {
  tt.func @ttg(%arg0: tensor<32x32x!tt.ptr<f16>, #blocked>, %arg1: tensor<32x32xf16, #blocked>) {
    %c0_i32 = arith.constant 0 : i32
    %0 = ttg.convert_layout %arg1 : tensor<32x32xf16, #blocked> -> tensor<32x32xf16, #blocked1>
    %1 = ttg.local_alloc : () -> !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable>
    %2 = ttg.memdesc_index %1[%c0_i32] : !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable> -> !ttg.memdesc<32x32xf16, #shared, #smem, mutable>
    %3 = ttg.async_copy_global_to_local %arg0, %2 : tensor<32x32x!tt.ptr<f16>, #blocked> -> <32x32xf16, #shared, #smem, mutable>
    %4 = ttg.async_commit_group tokens %3
    %5 = ttg.async_wait %4 {num = 0 : i32}
    %6 = ttg.local_load %2 token %5 : !ttg.memdesc<32x32xf16, #shared, #smem, mutable> -> tensor<32x32xf16, #blocked>
    ttg.local_store %6, %2 : tensor<32x32xf16, #blocked> -> !ttg.memdesc<32x32xf16, #shared, #smem, mutable>
    ttg.local_dealloc %1 : !ttg.memdesc<2x32x32xf16, #shared, #smem, mutable>
    tt.return
  }
}

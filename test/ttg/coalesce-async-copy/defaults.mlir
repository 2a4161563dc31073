// A module that does not say how many threads a warp has: 32, as for upstream.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s %}
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
// CHECK: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-warps" = 4 : i32} {
// 4 * 32 threads: 64 elements are fewer.
// CHECK-LABEL: @small(
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @small(%p: tensor<64x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<64xf32, #s, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b> -> <64xf32, #s, #smem, mutable>
  tt.return
}

// 128 elements are not.
// CHECK-LABEL: @as_many_as_threads(
// CHECK-NOT: ttg.convert_layout
// CHECK: tt.return
tt.func public @as_many_as_threads(%p: tensor<128x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  tt.return
}
}

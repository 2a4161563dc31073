// Small is what one CTA of a cluster copies; upstream's pass takes the elements of the whole cluster.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,HOST %}
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0], CGALayout = [[1]]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[1]]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// 64 elements for the 128 threads of each.
// CHECK-LABEL: @two_ctas(
// EXT: ttg.convert_layout %{{.*}} -> tensor<128x!tt.ptr<f32>, #{{.*}}>
// HOST-NOT: ttg.convert_layout
tt.func public @two_ctas(%p: tensor<128x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<128xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b0> -> <128xf32, #s0, #smem, mutable>
  tt.return
}
}

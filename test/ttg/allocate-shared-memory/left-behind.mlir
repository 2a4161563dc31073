// Attributes that an earlier run left, or a person wrote: sizes are computed anew, what needs no memory
// keeps what it has.

// RUN: triton-opt %s --allocate-shared-memory | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-shared-memory | FileCheck %s

#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK: ttg.shared = 4096 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 64 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CHECK: @without() attributes {allocation.offset = 16 : i32}
tt.func public @without() attributes {allocation.offset = 16 : i32} {
  tt.return
}
// CHECK-LABEL: @convert(
tt.func public @convert(%x: tensor<32x32xf32, #r>, %y: tensor<32x32xf32, #r>) -> (tensor<32x32xf32, #c>, tensor<32x32xf32, #c>) {
  // CHECK: ttg.convert_layout %{{.*}} {allocation.offset = 0 : i32
  %0 = ttg.convert_layout %x : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  // CHECK: ttg.convert_layout %{{.*}} {allocation.offset = 0 : i32
  %1 = ttg.convert_layout %y {allocation.offset = 128 : i32} : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  tt.return %0, %1 : tensor<32x32xf32, #c>, tensor<32x32xf32, #c>
}
}

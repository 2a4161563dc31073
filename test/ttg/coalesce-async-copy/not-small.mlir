// Copies of any size that the hardware has no instruction for: cp.async takes 4 bytes of a thread and
// more. Upstream's pass leaves them, and the compile fails. Copies that compile stay as they are.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
// EXT-DAG: [[WIDE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [16], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// CHECK-LABEL: @i8(
// EXT: ttg.convert_layout %{{.*}} -> tensor<4096x!tt.ptr<i8>, [[WIDE]]>
// HOST-NOT: ttg.convert_layout
tt.func public @i8(%p: tensor<4096x!tt.ptr<i8>, #b0> {tt.contiguity = dense<[4096]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<4096xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<4096x!tt.ptr<i8>, #b0> -> <4096xi8, #s0, #smem, mutable>
  tt.return
}

// 32 instructions of 4 bytes could be 8 of 16, if it were not for the conversion of 4096 pointers.
// CHECK-LABEL: @f32(
// CHECK-NOT: ttg.convert_layout
tt.func public @f32(%p: tensor<4096x!tt.ptr<f32>, #b0> {tt.contiguity = dense<[4096]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<4096xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<4096x!tt.ptr<f32>, #b0> -> <4096xf32, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @nothing_known(
// CHECK-NOT: ttg.convert_layout
tt.func public @nothing_known(%p: tensor<4096x!tt.ptr<i8>, #b0>, %m: !ttg.memdesc<4096xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<4096x!tt.ptr<i8>, #b0> -> <4096xi8, #s0, #smem, mutable>
  tt.return
}
}

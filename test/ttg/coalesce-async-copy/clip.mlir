// A thread holds more than what lies side by side in a swizzled buffer: it is clipped to that, and the
// lanes of an instruction are side by side again. Upstream's pass loses the attribute contiguity, so
// that 8-bit copies that compile without the pass fail with it.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], order = [1, 0]}>
#s0 = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 2, order = [1, 0]}>
#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[CLIPPED:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [16, 2], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK-DAG: [[SIXTEEN:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// 16 bytes of a thread, 8 side by side in the buffer.
// CHECK-LABEL: @proven(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x16x!tt.ptr<i8>, [[CLIPPED]]>
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<64x16x!tt.ptr<i8>, [[CLIPPED]]>
tt.func public @proven(%p: tensor<64x16x!tt.ptr<i8>, #b0> {tt.contiguity = dense<[1, 16]> : tensor<2xi32>, tt.divisibility = dense<[1, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x16xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x16x!tt.ptr<i8>, #b0> -> <64x16xi8, #s0, #smem, mutable>
  tt.return
}

// Nothing is proven: the attribute alone says that 16 bytes are side by side.
// CHECK-LABEL: @hint(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x16x!tt.ptr<i8>, [[CLIPPED]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<64x16x!tt.ptr<i8>, [[CLIPPED]]>
// HOST: ttg.async_copy_global_to_local %{{[^{]*}} : tensor<64x16x!tt.ptr<i8>, 
tt.func public @hint(%p: tensor<64x16x!tt.ptr<i8>, #b0>, %m: !ttg.memdesc<64x16xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 16 : i32} : tensor<64x16x!tt.ptr<i8>, #b0> -> <64x16xi8, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @larger(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<128x16x!tt.ptr<i8>, [[CLIPPED]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<128x16x!tt.ptr<i8>, [[CLIPPED]]>
// HOST: ttg.async_copy_global_to_local %{{[^{]*}} : tensor<128x16x!tt.ptr<i8>, 
tt.func public @larger(%p: tensor<128x16x!tt.ptr<i8>, #b0>, %m: !ttg.memdesc<128x16xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 16 : i32} : tensor<128x16x!tt.ptr<i8>, #b0> -> <128x16xi8, #s0, #smem, mutable>
  tt.return
}

// All 16 bytes lie side by side.
// CHECK-LABEL: @not_swizzled(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<64x16x!tt.ptr<i8>, [[SIXTEEN]]>
tt.func public @not_swizzled(%p: tensor<64x16x!tt.ptr<i8>, #b0> {tt.contiguity = dense<[1, 16]> : tensor<2xi32>, tt.divisibility = dense<[1, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x16xi8, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x16x!tt.ptr<i8>, #b0> -> <64x16xi8, #s1, #smem, mutable>
  tt.return
}
}

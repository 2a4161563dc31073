// gfx1250 copies 4, 8 or 16 bytes of a lane to any address in LDS. Upstream's pass does nothing there.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#b1 = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#b2 = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#b3 = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>
#b4 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s2 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#s3 = #ttg.padded_shared<[4:+4] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
// EXT-DAG: [[EIGHT:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
// EXT-DAG: [[TWO:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// EXT-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// EXT-DAG: [[LINEAR:#[a-z0-9]+]] = #ttg.linear<{register = {{\[\[}}0, 1], [0, 2], [8, 0], [16, 0], [32, 0]], lane = {{\[\[}}0, 4], [0, 8], [0, 16], [0, 32], [1, 0]], warp = {{\[\[}}2, 0], [4, 0]], block = []}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// 16 instructions of 4 bytes become 4 of 16.
// CHECK-LABEL: @narrow(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @narrow(%p: tensor<64x64x!tt.ptr<f16>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b0> -> <64x64xf16, #s0, #smem, mutable>
  tt.return
}

// Nothing copies 2 bytes: the compile fails.
// CHECK-LABEL: @one_element(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @one_element(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s0, #smem, mutable>
  tt.return
}

// Wide already, says the attribute.
// CHECK-LABEL: @hint(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @hint(%p: tensor<64x64x!tt.ptr<f16>, #b2>, %m: !ttg.memdesc<64x64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, #b2> -> <64x64xf16, #s0, #smem, mutable>
  tt.return
}

// The mask selects pairs.
// CHECK-LABEL: @masked(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64xi1, [[TWO]]>
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @masked(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s0, #smem, mutable>, %k: tensor<64x64xi1, #b1> {tt.contiguity = dense<[1, 1]> : tensor<2xi32>, tt.divisibility = dense<[1, 1]> : tensor<2xi32>, tt.constancy = dense<[1, 2]> : tensor<2xi32>}) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s0, #smem, mutable>
  tt.return
}

// 4 bytes, since the buffer has another order than memory; each lane writes where it has to.
// CHECK-LABEL: @scattered(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @scattered(%p: tensor<64x64x!tt.ptr<f32>, #b3> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[4, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf32, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f32>, #b3> -> <64x64xf32, #s1, #smem, mutable>
  tt.return
}

// 4 instructions of 4 bytes become one.
// CHECK-LABEL: @small(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @small(%p: tensor<64x!tt.ptr<f32>, #b4>, %m: !ttg.memdesc<64xf32, #s2, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b4> -> <64xf32, #s2, #smem, mutable>
  tt.return
}

// 8 bytes between two paddings.
// CHECK-LABEL: @padded(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 4 : i32} : tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @padded(%p: tensor<64x64x!tt.ptr<f16>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s3, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b0> -> <64x64xf16, #s3, #smem, mutable>
  tt.return
}
}

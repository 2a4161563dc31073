// gfx942 copies 4 bytes of a lane, gfx950 4 or 16, and the lanes of a wave have to write one run in LDS.
// Copies that compile stay as they are, all others get the widest vector that is known to be possible.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942
// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,GFX950,EXT-GFX950
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,GFX950,HOST-GFX950
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b1 = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#b2 = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [16, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#b3 = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
#s2 = #ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 8, order = [1, 0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// CHECK-DAG: [[TWO:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [2, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// GFX950-DAG: [[EIGHT:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
// GFX942-DAG: [[FOUR:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// CHECK-LABEL: @f32_nothing_proven(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<1024x!tt.ptr<f32>, [[ONE]]>
tt.func public @f32_nothing_proven(%p: tensor<1024x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<1024xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<1024x!tt.ptr<f32>, #b0> -> <1024xf32, #s0, #smem, mutable>
  tt.return
}

// 16 bytes of a lane are what gfx950 copies.
// CHECK-LABEL: @f32_proven(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<1024x!tt.ptr<f32>, [[ONE]]>
// GFX950-NOT: ttg.convert_layout
// GFX950: ttg.async_copy_global_to_local
tt.func public @f32_proven(%p: tensor<1024x!tt.ptr<f32>, #b0> {tt.contiguity = dense<[4]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<1024xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<1024x!tt.ptr<f32>, #b0> -> <1024xf32, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @f16(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// GFX950-NOT: ttg.convert_layout
// GFX950: ttg.async_copy_global_to_local
tt.func public @f16(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @f16_more_than_a_vector(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// GFX950: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// GFX950: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
tt.func public @f16_more_than_a_vector(%p: tensor<64x64x!tt.ptr<f16>, #b2> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b2> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// Nothing copies 8 bytes. Upstream's pass takes no more than what a thread holds already.
// CHECK-LABEL: @f16_8_bytes(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// EXT-GFX950: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// EXT-GFX950: ttg.async_copy_global_to_local {{.*}} {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, [[EIGHT]]>
// HOST-GFX950: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// HOST-GFX950: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[TWO]]>
tt.func public @f16_8_bytes(%p: tensor<64x64x!tt.ptr<f16>, #b3> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b3> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// The mask is constant over pairs.
// CHECK-LABEL: @f16_masked(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x64xi1, [[TWO]]>
// CHECK: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32}
tt.func public @f16_masked(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>, %k: tensor<64x64xi1, #b1> {tt.contiguity = dense<[1, 1]> : tensor<2xi32>, tt.divisibility = dense<[1, 1]> : tensor<2xi32>, tt.constancy = dense<[1, 2]> : tensor<2xi32>}) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// Nothing copies 2 bytes.
// CHECK-LABEL: @f16_masked_at_will(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @f16_masked_at_will(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>, %k: tensor<64x64xi1, #b1>) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// 8 bytes stay together in the swizzle.
// CHECK-LABEL: @f16_swizzled(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// CHECK: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[TWO]]>
tt.func public @f16_swizzled(%p: tensor<64x64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s2, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s2, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @i8(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<i8>, [[FOUR]]>
// GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 4 : i32} : tensor<64x64x!tt.ptr<i8>, [[FOUR]]>
// GFX950-NOT: ttg.convert_layout
// GFX950: ttg.async_copy_global_to_local
tt.func public @i8(%p: tensor<64x64x!tt.ptr<i8>, #b2> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[1, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xi8, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<i8>, #b2> -> <64x64xi8, #s1, #smem, mutable>
  tt.return
}
}

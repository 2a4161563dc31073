// The attribute contiguity says more than what is proven. The lowering believes it; upstream's pass does
// not, and makes narrow copies of wide ones.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942,EXT-GFX942
// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,EXT-GFX950
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefixes=CHECK,HOST,GFX942
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,HOST,HOST-GFX950
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b1 = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
// GFX942-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// HOST-GFX950-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// EXT-GFX942-DAG: [[TWO:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [2, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// CHECK-LABEL: @f32(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<1024x!tt.ptr<f32>, [[ONE]]>
// EXT-GFX950-NOT: ttg.convert_layout
// EXT-GFX950: ttg.async_copy_global_to_local
// HOST-GFX950: ttg.convert_layout %{{.*}} -> tensor<1024x!tt.ptr<f32>, [[ONE]]>
tt.func public @f32(%p: tensor<1024x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<1024xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 4 : i32} : tensor<1024x!tt.ptr<f32>, #b0> -> <1024xf32, #s0, #smem, mutable>
  tt.return
}

// Nothing is known of the mask but what the attribute says: eights are selected together.
// CHECK-LABEL: @f16_masked(
// EXT-GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[TWO]]>
// EXT-GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32}
// EXT-GFX950-NOT: ttg.convert_layout
// EXT-GFX950: ttg.async_copy_global_to_local
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local
tt.func public @f16_masked(%p: tensor<64x64x!tt.ptr<f16>, #b1>, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>, %k: tensor<64x64xi1, #b1>) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k {contiguity = 8 : i32} : tensor<64x64x!tt.ptr<f16>, #b1> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}
}

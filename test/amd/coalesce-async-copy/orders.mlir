// Pointers and buffer have different orders. The lanes of a wave walk through the buffer's: upstream's
// pass does so from 3.8 on, and stays with the dimension that was the fastest of the pointers. Before, they
// walk through that of the pointers, and each lane writes elsewhere.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx942 | FileCheck %s --check-prefixes=CHECK,EXT,EXT-GFX942
// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,EXT,EXT-GFX950
// RUN: %if triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefixes=CHECK,HOST %}
// RUN: %if triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,HOST %}
// RUN: %if !triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefixes=CHECK,OLD %}
// RUN: %if !triton-3.8-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,OLD %}
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>
#smem = #ttg.shared_memory
// EXT-DAG: [[COLUMN:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [64, 1], warpsPerCTA = [1, 4], order = [0, 1]}>
// HOST-DAG: [[COLUMN:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [64, 1], warpsPerCTA = [1, 4], order = [1, 0]}>
// OLD-DAG: [[ROW:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 64], warpsPerCTA = [4, 1], order = [1, 0]}>
// EXT-GFX950-DAG: [[WIDE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [16, 4], warpsPerCTA = [1, 4], order = [0, 1]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// CHECK-LABEL: @nothing_proven_along_the_buffer(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[COLUMN]]>
// HOST: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[COLUMN]]>
// OLD: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[ROW]]>
tt.func public @nothing_proven_along_the_buffer(%p: tensor<64x64x!tt.ptr<f32>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[4, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f32>, #b0> -> <64x64xf32, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @proven_along_the_buffer(
// EXT-GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[COLUMN]]>
// EXT-GFX950: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[WIDE]]>
// EXT-GFX950: ttg.async_copy_global_to_local {{.*}} {contiguity = 4 : i32} : tensor<64x64x!tt.ptr<f32>, [[WIDE]]>
// HOST: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[COLUMN]]>
// OLD: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f32>, [[ROW]]>
tt.func public @proven_along_the_buffer(%p: tensor<64x64x!tt.ptr<f32>, #b0> {tt.contiguity = dense<[64, 1]> : tensor<2xi32>, tt.divisibility = dense<[16, 4]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f32>, #b0> -> <64x64xf32, #s0, #smem, mutable>
  tt.return
}
}

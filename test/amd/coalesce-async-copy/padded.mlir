// Padded buffers: registers of a vector, then lanes, then waves enumerate the offsets, and no padding
// may come before the last lane. 64 lanes of 4 bytes are 128 elements of 16 bits, of 16 bytes 512.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942
// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,GFX950
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942 %}
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,GFX950 %}
// RUN: %if triton-3.6 %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx942 | FileCheck %s --check-prefix=OLD942 %}
// RUN: %if triton-3.6 %{ triton-opt %s --pass-provider=host --tritonamdgpu-coalesce-async-copy=%{gfx-arch}=gfx950 | FileCheck %s --check-prefix=OLD950 %}
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#s0 = #ttg.padded_shared<[512:+16] {order = [1, 0], shape = [64, 64]}>
#s1 = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#s2 = #ttg.padded_shared<[64:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
// 3.6 does not look at the intervals: it rewrites what gfx942 has no width for, and nothing for gfx950.
// OLD942-COUNT-3: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, #linear>
// OLD950-NOT: ttg.convert_layout
// CHECK-DAG: [[LINEAR:#[a-z0-9]+]] = #ttg.linear<{register = {{\[\[}}0, 1], [8, 0], [16, 0], [32, 0]], lane = {{\[\[}}0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 0]], warp = {{\[\[}}2, 0], [4, 0]], block = []}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// CHECK-LABEL: @wide_interval(
// GFX942: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
// GFX942: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
// GFX950-NOT: ttg.convert_layout
// GFX950: ttg.async_copy_global_to_local
tt.func public @wide_interval(%p: tensor<64x64x!tt.ptr<f16>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b0> -> <64x64xf16, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @narrow_interval(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
// CHECK: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32} : tensor<64x64x!tt.ptr<f16>, [[LINEAR]]>
tt.func public @narrow_interval(%p: tensor<64x64x!tt.ptr<f16>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b0> -> <64x64xf16, #s1, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @too_narrow(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @too_narrow(%p: tensor<64x64x!tt.ptr<f16>, #b0> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #s2, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #b0> -> <64x64xf16, #s2, #smem, mutable>
  tt.return
}
}

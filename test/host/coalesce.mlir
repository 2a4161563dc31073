// REQUIRES: triton
// RUN: triton-opt %s -tritongpu-coalesce | FileCheck %s
// RUN: triton-opt %s --pass-pipeline='builtin.module(tritongpu-coalesce)' | FileCheck %s
// RUN: triton-opt - --tritongpu-coalesce -o %t < %s
// RUN: FileCheck %s < %t

// One element for each thread is as many as a 4-byte access takes; 128 divisible elements make it
// four (16 bytes).

// CHECK: [[WIDE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [4]
// CHECK-LABEL: @copy
// CHECK: tt.load {{.*}} : tensor<1024x!tt.ptr<f32>, [[WIDE]]>
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @copy(%from: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %to: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %range = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32, #blocked>
    %from_base = tt.splat %from : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>, #blocked>
    %from_ptrs = tt.addptr %from_base, %range : tensor<1024x!tt.ptr<f32>, #blocked>, tensor<1024xi32, #blocked>
    %to_base = tt.splat %to : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>, #blocked>
    %to_ptrs = tt.addptr %to_base, %range : tensor<1024x!tt.ptr<f32>, #blocked>, tensor<1024xi32, #blocked>
    %x = tt.load %from_ptrs : tensor<1024x!tt.ptr<f32>, #blocked>
    tt.store %to_ptrs, %x : tensor<1024x!tt.ptr<f32>, #blocked>
    tt.return
  }
}

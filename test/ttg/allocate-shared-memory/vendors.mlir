// The passes of a vendor take modules of another one and modules without a target, as Triton's do: their
// options name the GPU.

// RUN: triton-opt %s --allocate-shared-memory-nv -split-input-file | FileCheck %s
// RUN: triton-opt %s --allocate-amdgpu-shared-memory -split-input-file | FileCheck %s
// RUN: triton-opt %s --allocate-shared-memory -split-input-file | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-shared-memory-nv -split-input-file | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-amdgpu-shared-memory -split-input-file | FileCheck %s

#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK: ttg.shared = 4096 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @nvidia(%x: tensor<32x32xf32, #r>) -> tensor<32x32xf32, #c> {
  // CHECK: ttg.convert_layout {{.*}}allocation.offset = 0 : i32
  %0 = ttg.convert_layout %x : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  tt.return %0 : tensor<32x32xf32, #c>
}
}

// -----

#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 2], warpsPerCTA = [1, 4], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [2, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK: ttg.shared = 4096 : i32
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942", "ttg.threads-per-warp" = 64 : i32} {
tt.func public @amd(%x: tensor<32x32xf32, #r>) -> tensor<32x32xf32, #c> {
  // CHECK: ttg.convert_layout {{.*}}allocation.offset = 0 : i32
  %0 = ttg.convert_layout %x : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  tt.return %0 : tensor<32x32xf32, #c>
}
}

// -----

#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK: ttg.shared = 4096 : i32
module attributes {"ttg.num-warps" = 4 : i32} {
tt.func public @nobody(%x: tensor<32x32xf32, #r>) -> tensor<32x32xf32, #c> {
  // CHECK: ttg.convert_layout {{.*}}allocation.offset = 0 : i32
  %0 = ttg.convert_layout %x : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  tt.return %0 : tensor<32x32xf32, #c>
}
}

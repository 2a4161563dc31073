// Small copies of which more is known than upstream's pass uses: it gives each thread one element, and
// leaves elements of 8 and 16 bits alone.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK,HOST %}
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b1 = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#b2 = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[FOUR:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// HOST-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// EXT-DAG: [[SIXTEEN:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [16], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// EXT-DAG: [[EIGHT:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// EXT-DAG: [[TWO:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// One instruction of 16 bytes; upstream makes it 4 bytes.
// CHECK-LABEL: @wide_already(
// EXT-NOT: ttg.convert_layout
// EXT: ttg.async_copy_global_to_local {{.*}} : tensor<64x!tt.ptr<f32>, [[FOUR]]>
// HOST: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @wide_already(%p: tensor<64x!tt.ptr<f32>, #b0> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b0> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// With one byte of a thread there is no instruction for it.
// CHECK-LABEL: @i8(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<i8>, [[SIXTEEN]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 16 : i32}
// HOST-NOT: ttg.convert_layout
// HOST: ttg.async_copy_global_to_local {{.*}} : tensor<64x!tt.ptr<i8>, [[ONE]]>
tt.func public @i8(%p: tensor<64x!tt.ptr<i8>, #b1> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xi8, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<i8>, #b1> -> <64xi8, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @f16(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f16>, [[EIGHT]]>
// HOST-NOT: ttg.convert_layout
tt.func public @f16(%p: tensor<64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f16>, #b1> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// Two elements are just enough.
// CHECK-LABEL: @f16_4_bytes(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f16>, [[TWO]]>
// HOST-NOT: ttg.convert_layout
tt.func public @f16_4_bytes(%p: tensor<64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[2]> : tensor<1xi32>, tt.divisibility = dense<[4]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f16>, #b1> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// Side by side, but aligned to 2 bytes.
// CHECK-LABEL: @f16_2_bytes(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @f16_2_bytes(%p: tensor<64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[2]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f16>, #b1> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// The mask selects pairs.
// CHECK-LABEL: @masked(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f16>, [[TWO]]>
// EXT: ttg.convert_layout %{{.*}} -> tensor<64xi1, [[TWO]]>
// HOST-NOT: ttg.convert_layout
tt.func public @masked(%p: tensor<64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>, %k: tensor<64xi1, #b1> {tt.contiguity = dense<[1]> : tensor<1xi32>, tt.divisibility = dense<[1]> : tensor<1xi32>, tt.constancy = dense<[2]> : tensor<1xi32>}) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x!tt.ptr<f16>, #b1> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// Nothing is known of the mask.
// CHECK-LABEL: @masked_at_will(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local
tt.func public @masked_at_will(%p: tensor<64x!tt.ptr<f16>, #b1> {tt.contiguity = dense<[64]> : tensor<1xi32>, tt.divisibility = dense<[16]> : tensor<1xi32>, tt.constancy = dense<[1]> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>, %k: tensor<64xi1, #b1>) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x!tt.ptr<f16>, #b1> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// The attribute says that pairs are side by side: one instruction of 8 bytes.
// CHECK-LABEL: @hint(
// EXT: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[TWO]]>
// EXT: ttg.async_copy_global_to_local {{.*}} {contiguity = 2 : i32}
// HOST: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
// HOST: ttg.async_copy_global_to_local %{{[^{]*}} : tensor<64x!tt.ptr<f32>, 
tt.func public @hint(%p: tensor<64x!tt.ptr<f32>, #b2>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 2 : i32} : tensor<64x!tt.ptr<f32>, #b2> -> <64xf32, #s0, #smem, mutable>
  tt.return
}
}

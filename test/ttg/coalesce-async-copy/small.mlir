// A small copy (fewer elements than the CTA has threads) was laid out for whoever uses what it loads.
// Source and destination of an asynchronous copy are independent: it gets the layout that is best for
// the copy. Nothing is known of the pointers here but what the functions say, so that a vector is one
// element and ours chooses what upstream's pass (3.7 and newer) does.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK
// RUN: %if triton-3.7-or-newer %{ triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefixes=CHECK %}
// RUN: %if triton-3.6 %{ triton-opt %s --pass-provider=host --tritongpu-coalesce-async-copy | FileCheck %s --check-prefix=OLD %}
// REQUIRES: triton

#b0 = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s0 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b1 = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [0, 1]}>
#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#b2 = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#b3 = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#b4 = #ttg.slice<{dim = 1, parent = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>}>
#b5 = #ttg.linear<{register = [[32]], lane = [[1], [2], [4], [8], [16]], warp = [[0], [0]], block = []}>
#b6 = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[ONE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// CHECK-DAG: [[FOUR:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// CHECK-DAG: [[ROWS:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
// CHECK-DAG: [[COLUMNS:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [1, 4], order = [0, 1]}>
// CHECK-DAG: [[WIDE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// Four instructions of 4 bytes become one.
// CHECK-LABEL: @f32(
// CHECK: [[P:%.*]] = ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
// CHECK: ttg.async_copy_global_to_local [[P]], %{{[^{]*}} : tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @f32(%p: tensor<64x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b0> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @i64(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<i64>, [[ONE]]>
tt.func public @i64(%p: tensor<64x!tt.ptr<i64>, #b0>, %m: !ttg.memdesc<64xi64, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<i64>, #b0> -> <64xi64, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @f64(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f64>, [[ONE]]>
tt.func public @f64(%p: tensor<64x!tt.ptr<f64>, #b0>, %m: !ttg.memdesc<64xf64, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f64>, #b0> -> <64xf64, #s0, #smem, mutable>
  tt.return
}

// Mask and other go along.
// CHECK-LABEL: @mask_and_other(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
// CHECK: [[K:%.*]] = ttg.convert_layout %{{.*}} -> tensor<64xi1, [[ONE]]>
// CHECK: [[O:%.*]] = ttg.convert_layout %{{.*}} -> tensor<64xf32, [[ONE]]>
// CHECK: ttg.async_copy_global_to_local {{.*}} mask [[K]] other [[O]]
tt.func public @mask_and_other(%p: tensor<64x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>, %k: tensor<64xi1, #b0>, %o: tensor<64xf32, #b0>) {
  %t = ttg.async_copy_global_to_local %p, %m mask %k other %o : tensor<64x!tt.ptr<f32>, #b0> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// 128 elements for 4 * 32 threads are not fewer.
// CHECK-LABEL: @as_many_as_threads(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<128x!tt.ptr<f32>, [[FOUR]]>
tt.func public @as_many_as_threads(%p: tensor<128x!tt.ptr<f32>, #b0>, %m: !ttg.memdesc<128xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b0> -> <128xf32, #s0, #smem, mutable>
  tt.return
}

// One element of 16 bits is less than an instruction of 4 bytes takes.
// CHECK-LABEL: @f16(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<64x!tt.ptr<f16>, [[FOUR]]>
tt.func public @f16(%p: tensor<64x!tt.ptr<f16>, #b0>, %m: !ttg.memdesc<64xf16, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f16>, #b0> -> <64xf16, #s0, #smem, mutable>
  tt.return
}

// Of equally contiguous dimensions the last one comes first.
// CHECK-LABEL: @rows(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<8x8x!tt.ptr<f32>, [[ROWS]]>
tt.func public @rows(%p: tensor<8x8x!tt.ptr<f32>, #b1>, %m: !ttg.memdesc<8x8xf32, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<8x8x!tt.ptr<f32>, #b1> -> <8x8xf32, #s1, #smem, mutable>
  tt.return
}

// Columns lie side by side in memory, at any address.
// CHECK-LABEL: @columns(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<8x8x!tt.ptr<f32>, [[COLUMNS]]>
tt.func public @columns(%p: tensor<8x8x!tt.ptr<f32>, #b2> {tt.contiguity = dense<[8, 1]> : tensor<2xi32>, tt.divisibility = dense<[4, 4]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<8x8xf32, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<8x8x!tt.ptr<f32>, #b2> -> <8x8xf32, #s1, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @few_rows(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<2x32x!tt.ptr<f32>, [[WIDE]]>
tt.func public @few_rows(%p: tensor<2x32x!tt.ptr<f32>, #b3>, %m: !ttg.memdesc<2x32xf32, #s1, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<2x32x!tt.ptr<f32>, #b3> -> <2x32xf32, #s1, #smem, mutable>
  tt.return
}

// Laid out for the rows of a tile.
// CHECK-LABEL: @slice(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @slice(%p: tensor<64x!tt.ptr<f32>, #b4>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b4> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @linear(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @linear(%p: tensor<64x!tt.ptr<f32>, #b5>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b5> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// Nothing to do.
// CHECK-LABEL: @coalesced(
// CHECK-NOT: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local {{.*}} : tensor<64x!tt.ptr<f32>, [[ONE]]>
tt.func public @coalesced(%p: tensor<64x!tt.ptr<f32>, #b6>, %m: !ttg.memdesc<64xf32, #s0, #smem, mutable>) {
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #b6> -> <64xf32, #s0, #smem, mutable>
  tt.return
}

// 3.6 leaves all of them.
// OLD-NOT: ttg.convert_layout
}

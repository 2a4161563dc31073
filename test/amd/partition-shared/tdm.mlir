// Operands of a dot that TDM loads: descriptor arguments, buffers, their views and what a loop
// carries change together, and waves 0 and 1 get tiles in different rows and columns.

// RUN: triton-opt %s --triton-ext-partition-shared -split-input-file | FileCheck %s
// RUN: triton-opt %s --host=none --triton-ext-partition-shared -split-input-file | FileCheck %s
// RUN: triton-opt %s --triton-ext-partition-shared=reorder-waves=false -split-input-file | FileCheck %s --check-prefix=ORDER
// RUN: triton-opt %s --triton-ext-partition-shared -split-input-file --allocate-amdgpu-shared-memory | FileCheck %s --check-prefix=OFFSETS

// REQUIRES: triton-3.8-or-newer

// Rows 0 to 63 in partition 0, 64 to 127 in partition 1, of both operands. Each wave has tiles side by
// side, in both halves of the rows of A: wave 1 begins with the other half than wave 0.
// CHECK-DAG: #[[PIECE:.+]] = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
// CHECK-DAG: #[[P:.+]] = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0, partitionLayout = #[[PIECE]]}>
// CHECK-DAG: #[[PT:.+]] = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 1, partitionLayout = #{{.+}}}>
// CHECK-DAG: #[[W:.+]] = #ttg.amd_wmma<{{.*}}ctaLayout = {register = {{\[\[}}0, 1], [0, 2], [1, 0], [4, 0]], warp = {{\[\[}}4, 4], [2, 0]]}
// Without another order of the waves only B is better: 16 columns of the right operand, in turn.
// ORDER: ctaLayout = {warp = {{\[\[}}0, 1], [1, 0]]}
#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 1], [1, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [128, 64]}>
#shared1 = #ttg.padded_shared<[128:+8] {order = [0, 1], shape = [64, 128]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @matmul(
// CHECK-SAME: %a_desc: !tt.tensordesc<128x64xf16, #[[P]]>
// CHECK-SAME: %b_desc: !tt.tensordesc<128x64xf16, #[[P]]>
// ORDER-LABEL: @matmul(
// ORDER-SAME: %a_desc: !tt.tensordesc<128x64xf16, #shared>
// ORDER-SAME: %b_desc: !tt.tensordesc<128x64xf16, #partitioned_shared>
// OFFSETS-LABEL: @matmul(
tt.func public @matmul(%a_desc: !tt.tensordesc<128x64xf16, #shared>, %b_desc: !tt.tensordesc<128x64xf16, #shared>, %n: i32, %p: !tt.ptr<f32>) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  // CHECK: arith.constant dense<0.000000e+00> : tensor<128x128xf32, #[[W]]>
  %zero = arith.constant dense<0.000000e+00> : tensor<128x128xf32, #mma>
  // CHECK: local_alloc : () -> !ttg.memdesc<2x128x64xf16, #[[P]], #smem, mutable>
  // CHECK: local_alloc : () -> !ttg.memdesc<2x128x64xf16, #[[P]], #smem, mutable>
  // 17 KiB in each of partitions 0 and 1, one value behind the other.
  // OFFSETS: local_alloc {allocation.offset = [{{[0-9]+}} : i32, {{[0-9]+}} : i32]}
  // OFFSETS: local_alloc {allocation.offset = [{{[0-9]+}} : i32, {{[0-9]+}} : i32]}
  %a = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable>
  %b = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable>
  %a0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  %b0 = ttg.memdesc_index %b[%c0] : !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  // CHECK: scf.for {{.*}} -> (tensor<128x128xf32, #[[W]]>, !ttg.memdesc<128x64xf16, #[[P]], #smem, mutable>)
  %acc:2 = scf.for %k = %c0 to %n step %c1 iter_args(%sum = %zero, %bk = %b0) -> (tensor<128x128xf32, #mma>, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>) : i32 {
    // CHECK: amdg.update_tensor_descriptor {{.*}} : !tt.tensordesc<128x64xf16, #[[P]]>
    %ak_desc = amdg.update_tensor_descriptor %a_desc add_offsets = [%c0, %k] : !tt.tensordesc<128x64xf16, #shared>
    // CHECK: amdg.async_tdm_copy_global_to_local {{.*}} : !tt.tensordesc<128x64xf16, #[[P]]> -> !ttg.memdesc<128x64xf16, #[[P]], #smem, mutable>
    %t0 = amdg.async_tdm_copy_global_to_local %ak_desc into %a0 : !tt.tensordesc<128x64xf16, #shared> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    %t1 = amdg.async_tdm_copy_global_to_local %b_desc into %bk : !tt.tensordesc<128x64xf16, #shared> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    %w = amdg.async_tdm_wait {num = 0 : i32}
    // CHECK: local_load {{.*}}#[[P]], {{.*}} -> tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #[[W]], kWidth = 8}>>
    %x = ttg.local_load %a0 : !ttg.memdesc<128x64xf16, #shared, #smem, mutable> -> tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
    // CHECK: memdesc_trans {{.*}} -> !ttg.memdesc<64x128xf16, #[[PT]], #smem, mutable>
    %bt = ttg.memdesc_trans %bk {order = array<i32: 1, 0>} : !ttg.memdesc<128x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<64x128xf16, #shared1, #smem, mutable>
    %y = ttg.local_load %bt : !ttg.memdesc<64x128xf16, #shared1, #smem, mutable> -> tensor<64x128xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>
    %next = tt.dot %x, %y, %sum : tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x128xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<128x128xf32, #mma>
    %bn = ttg.memdesc_index %b[%c1] : !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
    scf.yield %next, %bn : tensor<128x128xf32, #mma>, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  }
  ttg.local_dealloc %a : !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable>
  // The result is stored with the pointers of the new order.
  // CHECK: tt.make_range {{.*}} : tensor<128xi32, #ttg.slice<{dim = 0, parent = #[[W]]}>>
  %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32, #ttg.slice<{dim = 0, parent = #mma}>>
  %e = tt.expand_dims %r {axis = 0 : i32} : tensor<128xi32, #ttg.slice<{dim = 0, parent = #mma}>> -> tensor<1x128xi32, #mma>
  %o = tt.broadcast %e : tensor<1x128xi32, #mma> -> tensor<128x128xi32, #mma>
  %ps = tt.splat %p : !tt.ptr<f32> -> tensor<128x128x!tt.ptr<f32>, #mma>
  %q = tt.addptr %ps, %o : tensor<128x128x!tt.ptr<f32>, #mma>, tensor<128x128xi32, #mma>
  // CHECK: tt.store {{.*}} : tensor<128x128x!tt.ptr<f32>, #[[W]]>
  tt.store %q, %acc#0 : tensor<128x128x!tt.ptr<f32>, #mma>
  tt.return
}
}

// -----

// Waits that were counted for one instruction of each load are counted anew: one load stays in flight,
// which takes one instruction for pieces of 64 rows, and two for those of 16.
#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 1], [1, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [0, 1], shape = [64, 128]}>
#shared1 = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [128, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @counted(
tt.func public @counted(%desc: !tt.tensordesc<128x64xf16, #shared1>, %x: tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>, %acc: tensor<128x128xf32, #mma>) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %b = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #shared1, #smem, mutable>
  %b0 = ttg.memdesc_index %b[%c0] : !ttg.memdesc<2x128x64xf16, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>
  %b1 = ttg.memdesc_index %b[%c1] : !ttg.memdesc<2x128x64xf16, #shared1, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>
  %t0 = amdg.async_tdm_copy_global_to_local %desc into %b0 : !tt.tensordesc<128x64xf16, #shared1> -> !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>
  %t1 = amdg.async_tdm_copy_global_to_local %desc into %b1 : !tt.tensordesc<128x64xf16, #shared1> -> !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>
  // CHECK: amdg.async_tdm_intrinsic_wait {{.*}}{count = 1 : i32, ttg.num_tdm_ops = 1 : i32}
  // ORDER: amdg.async_tdm_intrinsic_wait {{.*}}{count = 2 : i32, ttg.num_tdm_ops = 1 : i32}
  %w = amdg.async_tdm_intrinsic_wait  {count = 1 : i32, ttg.num_tdm_ops = 1 : i32}
  %bt = ttg.memdesc_trans %b0 {order = array<i32: 1, 0>} : !ttg.memdesc<128x64xf16, #shared1, #smem, mutable> -> !ttg.memdesc<64x128xf16, #shared, #smem, mutable>
  %y = ttg.local_load %bt : !ttg.memdesc<64x128xf16, #shared, #smem, mutable> -> tensor<64x128xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>
  %next = tt.dot %x, %y, %acc : tensor<128x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x128xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<128x128xf32, #mma>
  tt.return
}
}

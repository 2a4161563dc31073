// The order of the waves of a dot: waves 0 and 1 read the same rows of the left operand, and are given
// others where everything that has the result's encoding can follow.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared -split-input-file -verify-diagnostics | FileCheck %s

// REQUIRES: triton-3.8-or-newer

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 1], [1, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// A buffer that is made of the result: as an allocation and a store, which can be lowered.
// CHECK-LABEL: @stored_in_lds(
tt.func public @stored_in_lds(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>, %desc: !tt.tensordesc<64x64xf32, #shared>) {
  // expected-remark @below {{32 wavefronts instead of 64}}
  // expected-note @below {{bytes of LDS instead of}}
  // expected-note @below {{the waves of the dot are in another order: warp = [[1, 1], [1, 0]]}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  // CHECK: %[[C:.+]] = ttg.local_alloc : () -> !ttg.memdesc<64x64xf32, #shared, #smem, mutable>
  // CHECK-NEXT: ttg.local_store %{{.+}}, %[[C]] : tensor<64x64xf32, #mma1> -> !ttg.memdesc<64x64xf32, #shared, #smem, mutable>
  %c = ttg.local_alloc %d : (tensor<64x64xf32, #mma>) -> !ttg.memdesc<64x64xf32, #shared, #smem, mutable>
  // CHECK: async_tdm_copy_local_to_global %desc from %[[C]]
  amdg.async_tdm_copy_local_to_global %desc from %c : !ttg.memdesc<64x64xf32, #shared, #smem, mutable> -> !tt.tensordesc<64x64xf32, #shared>
  tt.return
}
}

// -----

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 1], [1, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// A reduction cannot be lowered where a basis of the waves moves two dimensions.
// CHECK-LABEL: @reduced(
// CHECK: local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
tt.func public @reduced(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) {
  // expected-remark @below {{'%a' stays in one partition: no encoding that is legal has fewer than its 64 wavefronts}}
  // expected-note @below {{the order of the waves stays: Triton cannot lower 'tt.reduce' for such waves}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  %r = "tt.reduce"(%d) <{axis = 1 : i32}> ({
  ^bb0(%one: f32, %two: f32):
    %s = arith.addf %one, %two : f32
    tt.reduce.return %s : f32
  }) : (tensor<64x64xf32, #mma>) -> tensor<64xf32, #ttg.slice<{dim = 1, parent = #mma}>>
  tt.return
}
}

// -----

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 1], [0, 2]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// All waves need all rows: wave 1 reads the halves in the other order.
// CHECK-LABEL: @all_rows(
tt.func public @all_rows(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) {
  // expected-remark @below {{64 wavefronts instead of 128}}
  // expected-note @below {{the waves of the dot are in another order: register = [[1, 0], [2, 0]], warp = [[2, 2], [0, 1]]}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  // CHECK: tt.dot {{.*}} -> tensor<64x64xf32, #mma1>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  tt.return
}
}

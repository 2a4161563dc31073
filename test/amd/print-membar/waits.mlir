// A read that waited for copies tells the lowering, and needs no barrier before the next copy.

// RUN: triton-opt %s --host=none -test-tritonamdgpu-membar | FileCheck %s

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 16], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#flat = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 2048 : i32} {
  // The token comes from a wait in front of the loop, or from the one of the iteration before.
  // CHECK-LABEL: @pipelined
  // CHECK: ttg.async_wait
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: scf.for
  // CHECK-NEXT: ttg.local_load {{.*}} {ttg.amdg.syncedViaAsyncWait = true}
  // CHECK-NEXT: ttg.async_copy_global_to_local
  // CHECK-NEXT: ttg.async_wait
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: scf.yield
  tt.func @pipelined(%p: tensor<16x64x!tt.ptr<f16>, #row>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x64xf16, #sh, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    %w = ttg.async_wait %t {num = 0 : i32}
    %last = scf.for %i = %c0 to %n step %c1 iter_args(%k = %w) -> (!ttg.async.token) : i32 {
      %x = ttg.local_load %a token %k : !ttg.memdesc<16x64xf16, #sh, #smem, mutable> -> tensor<16x64xf16, #row>
      %u = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
      %v = ttg.async_wait %u {num = 0 : i32}
      scf.yield %v : !ttg.async.token
    }
    tt.return
  }

  // The first iteration's token is a copy's: nothing has waited for it.
  // CHECK-LABEL: @not_waited
  // CHECK: scf.for
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_load {{.*}} {ttg.amdg.syncedViaAsyncWait = false}
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.async_copy_global_to_local
  tt.func @not_waited(%p: tensor<16x64x!tt.ptr<f16>, #row>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x64xf16, #sh, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    %last = scf.for %i = %c0 to %n step %c1 iter_args(%k = %t) -> (!ttg.async.token) : i32 {
      %x = ttg.local_load %a token %k : !ttg.memdesc<16x64xf16, #sh, #smem, mutable> -> tensor<16x64xf16, #row>
      %u = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
      %v = ttg.async_wait %u {num = 0 : i32}
      scf.yield %v : !ttg.async.token
    }
    tt.return
  }

  // The same bytes for another buffer: the wait is for copies into the first one.
  // CHECK-LABEL: @other_buffer
  // CHECK: ttg.local_load
  // CHECK-NEXT: ttg.local_alloc
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.async_copy_global_to_local
  tt.func @other_buffer(%p: tensor<16x64x!tt.ptr<f16>, #row>) {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x64xf16, #sh, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    %w = ttg.async_wait %t {num = 0 : i32}
    %x = ttg.local_load %a token %w : !ttg.memdesc<16x64xf16, #sh, #smem, mutable> -> tensor<16x64xf16, #row>
    %b = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x64xf16, #sh, #smem, mutable>
    %u = ttg.async_copy_global_to_local %p, %b : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    tt.return
  }

  // A barrier does not wait for copies, and the hardware orders what is done to mbarriers.
  // CHECK-LABEL: @in_order
  // CHECK-NOT: ttg.barrier
  // CHECK: tt.return
  tt.func @in_order(%p: tensor<16x64x!tt.ptr<f16>, #row>, %phase: i32) {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x64xf16, #sh, #smem, mutable>
    %m = ttg.local_alloc {allocation.offset = 2048 : i32} : () -> !ttg.memdesc<1xi64, #flat, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    %u = ttg.async_copy_global_to_local %p, %a : tensor<16x64x!tt.ptr<f16>, #row> -> <16x64xf16, #sh, #smem, mutable>
    amdg.init_barrier %m, 1 : !ttg.memdesc<1xi64, #flat, #smem, mutable>
    amdg.wait_barrier %m, %phase : !ttg.memdesc<1xi64, #flat, #smem, mutable>
    tt.return
  }
}

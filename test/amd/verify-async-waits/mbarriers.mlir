// Copies that arrive at an mbarrier: whoever waits there has the data, nobody else.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @told(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

// Nobody waits.
tt.func public @not_told(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

// Told before it arrives.
tt.func public @told_before(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

// Issued behind the arrival.
tt.func public @behind(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// It stands behind loads, not behind stores, which end in another order.
tt.func public @stores(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g = ttg.async_commit_group tokens %0
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe write to LDS: a copy may still read it}}
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// Nor does it know of the tensor data mover.
tt.func public @tdm(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<128xf32, #s> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end_tdm = amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

// That arrives by itself.
tt.func public @tdm_told(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = amdg.async_tdm_copy_global_to_local %d into %m, barrier = %bar : !tt.tensordesc<128xf32, #s>, !ttg.memdesc<1xi64, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %phase = arith.constant 0 : i32
  amdg.wait_barrier %bar, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

tt.func public @tdm_not_told(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = amdg.async_tdm_copy_global_to_local %d into %m, barrier = %bar : !tt.tensordesc<128xf32, #s>, !ttg.memdesc<1xi64, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}
}

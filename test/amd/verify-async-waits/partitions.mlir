// A partition starts while what other warps copied may be in flight.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @waited_before(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  %w = ttg.async_wait {num = 0 : i32}
  ttg.warp_specialize(%m, %bar)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>) num_warps(4) {
    %r = ttg.local_load %a : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<1xi64, #s, #smem, mutable>) -> ()
  tt.return
}

tt.func public @not_waited(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  ttg.warp_specialize(%m, %bar)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>) num_warps(4) {
    // expected-note @+3 {{other warps issued it, before 'ttg.warp_specialize'}}
    // expected-note @+2 {{there is no wait in between on this path}}
    // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
    %r = ttg.local_load %a : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<1xi64, #s, #smem, mutable>) -> ()
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// The wait is for copies of the warps that wait.
tt.func public @waited_inside(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  ttg.warp_specialize(%m, %bar)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>) num_warps(4) {
    %w = ttg.async_wait {num = 0 : i32}
    // expected-note @+3 {{other warps issued it, before 'ttg.warp_specialize'}}
    // expected-note @+2 {{there is no wait in between on this path}}
    // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
    %r = ttg.local_load %a : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<1xi64, #s, #smem, mutable>) -> ()
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

tt.func public @told(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  amdg.async_copy_mbarrier_arrive %bar : !ttg.memdesc<1xi64, #s, #smem, mutable>
  ttg.warp_specialize(%m, %bar)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>) num_warps(4) {
    %phase = arith.constant 0 : i32
    amdg.wait_barrier %ba, %phase : !ttg.memdesc<1xi64, #s, #smem, mutable>
    %r = ttg.local_load %a : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<1xi64, #s, #smem, mutable>) -> ()
  tt.return
}
}

// Waits that somebody else relies on: no number is raised, and none is said to be too low.

// RUN: triton-opt %s --triton-ext-verify-async-waits=fix=all | FileCheck %s
// RUN: triton-opt %s --triton-ext-verify-async-waits=report=all --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// The data is of use in another partition, which is told by an mbarrier.
// CHECK-LABEL: @partitions
tt.func public @partitions(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  ttg.warp_specialize(%m, %bar, %p, %n)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<2x128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>, %pp: tensor<128x!tt.ptr<f32>, #b>, %k: i32) num_warps(4) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    scf.for %i = %c0 to %k step %c1 : i32 {
      %slot = arith.remsi %i, %c2 : i32
      %s0 = ttg.memdesc_index %a[%slot] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
      %0 = ttg.async_copy_global_to_local %pp, %s0 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
      %g = ttg.async_commit_group tokens %0
      // Its own next write to the slot would do with 1.
      // CHECK: ttg.async_wait {num = 0 : i32}
      %w = ttg.async_wait {num = 0 : i32}
      amdg.arrive_barrier %ba, 1 : !ttg.memdesc<1xi64, #s, #smem, mutable>
    }
    ttg.warp_return
  }
  partition1(%a: !ttg.memdesc<2x128xf32, #s, #smem, mutable>, %ba: !ttg.memdesc<1xi64, #s, #smem, mutable>, %pp: tensor<128x!tt.ptr<f32>, #b>, %k: i32) num_warps(4) {
    %c0 = arith.constant 0 : i32
    amdg.wait_barrier %ba, %c0 : !ttg.memdesc<1xi64, #s, #smem, mutable>
    %s0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %r = ttg.local_load %s0 : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<2x128xf32, #s, #smem, mutable>, !ttg.memdesc<1xi64, #s, #smem, mutable>, tensor<128x!tt.ptr<f32>, #b>, i32) -> ()
  tt.return
}

// The same where the other partition is told in a way that the IR does not show.
// CHECK-LABEL: @shared
tt.func public @shared(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  ttg.warp_specialize(%m, %p, %n)
  default {
    ttg.warp_yield
  }
  partition0(%a: !ttg.memdesc<2x128xf32, #s, #smem, mutable>, %pp: tensor<128x!tt.ptr<f32>, #b>, %k: i32) num_warps(4) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    scf.for %i = %c0 to %k step %c1 : i32 {
      %slot = arith.remsi %i, %c2 : i32
      %s0 = ttg.memdesc_index %a[%slot] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
      %0 = ttg.async_copy_global_to_local %pp, %s0 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
      %g = ttg.async_commit_group tokens %0
      // CHECK: ttg.async_wait {num = 0 : i32}
      %w = ttg.async_wait {num = 0 : i32}
    }
    ttg.warp_return
  }
  partition1(%a: !ttg.memdesc<2x128xf32, #s, #smem, mutable>, %pp: tensor<128x!tt.ptr<f32>, #b>, %k: i32) num_warps(4) {
    %c0 = arith.constant 0 : i32
    %s0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %r = ttg.local_load %s0 : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    ttg.warp_return
  } : (!ttg.memdesc<2x128xf32, #s, #smem, mutable>, tensor<128x!tt.ptr<f32>, #b>, i32) -> ()
  tt.return
}

// What was stored is published by an atomic operation.
// CHECK-LABEL: @published
tt.func public @published(%p: tensor<128x!tt.ptr<f32>, #b>, %f: !tt.ptr<i32>, %n: i32, %v: tensor<128xf32, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %t = arith.constant true
  scf.for %i = %c0 to %n step %c1 : i32 {
    %slot = arith.remsi %i, %c2 : i32
    %s0 = ttg.memdesc_index %m[%slot] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    ttg.local_store %v, %s0 : tensor<128xf32, #b> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %0 = amdg.async_copy_local_to_global %s0, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
    %g = ttg.async_commit_group tokens %0
    // CHECK: ttg.async_wait {num = 0 : i32}
    %w = ttg.async_wait {num = 0 : i32}
    // A later wait that lets something through changes nothing about it.
    // CHECK: ttg.async_wait {num = 1 : i32}
    // expected-remark @+1 {{useless wait: nothing that it waits for can be in flight}}
    %w2 = ttg.async_wait {num = 1 : i32}
    %x = tt.atomic_rmw exch, release, gpu, %f, %c1, %t : (!tt.ptr<i32>, i32, i1) -> i32
  }
  tt.return
}

// A wait for groups does not wait for what is not committed, as the one for instructions does.
// CHECK-LABEL: @mixed
tt.func public @mixed(%p: tensor<128x!tt.ptr<f32>, #b>, %f: !tt.ptr<i32>, %n: i32, %v: tensor<128xf32, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  scf.for %i = %c0 to %n step %c1 : i32 {
    %slot = arith.remsi %i, %c2 : i32
    %s0 = ttg.memdesc_index %m[%slot] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    ttg.local_store %v, %s0 : tensor<128xf32, #b> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %0 = amdg.async_copy_local_to_global %s0, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
    // CHECK: num_inst = 0
    %w = amdg.async_wait {num_inst = 0 : i32}
    // CHECK: num = 0
    // expected-remark @+1 {{useless wait: nothing that it waits for can be in flight}}
    %w2 = ttg.async_wait {num = 0 : i32}
    %x = tt.atomic_rmw exch, release, gpu, %f, %c1 : (!tt.ptr<i32>, i32) -> i32
  }
  tt.return
}

// Nobody is told of anything: one group may stay in flight, up to the end.
// CHECK-LABEL: @alone
tt.func public @alone(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32, %v: tensor<128xf32, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  scf.for %i = %c0 to %n step %c1 : i32 {
    %slot = arith.remsi %i, %c2 : i32
    %s0 = ttg.memdesc_index %m[%slot] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    ttg.local_store %v, %s0 : tensor<128xf32, #b> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %0 = amdg.async_copy_local_to_global %s0, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
    %g = ttg.async_commit_group tokens %0
    // CHECK: ttg.async_wait {num = 1 : i32}
    // expected-remark @+1 {{waits longer than it has to: 0 groups are let in flight, 1 would do}}
    %w = ttg.async_wait {num = 0 : i32}
  }
  // CHECK: ttg.async_wait {num = 0 : i32}
  // expected-remark @+1 {{useless wait: nothing that it waits for can be in flight}}
  %end = ttg.async_wait {num = 0 : i32}
  tt.return
}
}

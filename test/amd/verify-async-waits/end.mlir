// The end of a kernel: its LDS is another workgroup's from there on, so no copy may be in flight.

// RUN: triton-opt %s -split-input-file --triton-ext-verify-async-waits --verify-diagnostics
// REQUIRES: triton-3.7-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

tt.func public @load(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %t = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<128xf32, #s> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+4 {{the copy into %m}}
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{the LDS of a workgroup that ended is given to another one: wait for 0 operations in front of this}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still write its LDS}}
  tt.return
}

tt.func public @store(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  // expected-note @+4 {{the copy from %m}}
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{the LDS of a workgroup that ended is given to another one: wait for 0 operations in front of this}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
}

tt.func public @waited(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

// The wait is there, and lets it through.
tt.func public @too_high(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  amdg.async_tdm_wait {num = 1 : i32}
  // expected-note @+2 {{lets 1 operation in flight, but only 0 operations were certainly issued after the copy: at most 0 is safe}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
}

// By address: groups are waited for, on the two queues of ASYNCcnt.
tt.func public @by_address(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  ttg.async_commit_group
  // expected-note @+2 {{wait for 0 groups in front of this}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still write its LDS}}
  tt.return
}

tt.func public @back(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %t = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  ttg.async_commit_group
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
}

tt.func public @not_committed(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  ttg.async_wait {num = 0 : i32}
  // expected-note @+2 {{waits for committed groups; the copy is not committed before it}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still write its LDS}}
  tt.return
}

// Both ways lead to the end, and the wait is on one of them.
tt.func public @one_way(%d: !tt.tensordesc<128xf32, #s>, %c: i1) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  scf.if %c {
    amdg.async_tdm_wait {num = 0 : i32}
  }
  // expected-note @+2 {{on the way back: past 'scf.if'}}
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
}

// Each end is one.
tt.func public @early(%d: !tt.tensordesc<128xf32, #s>, %c: i1) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  cf.cond_br %c, ^now, ^later
^now:
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
^later:
  amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

// What is called does not end the kernel: the caller may wait, or not.
tt.func private @callee(%d: !tt.tensordesc<128xf32, #s>, %m: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> !tt.tensordesc<128xf32, #s>
  tt.return
}
tt.func public @caller_waits(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  tt.call @callee(%d, %m) : (!tt.tensordesc<128xf32, #s>, !ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}
tt.func public @caller_ends(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  tt.call @callee(%d, %m) : (!tt.tensordesc<128xf32, #s>, !ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  // expected-error @+1 {{unsafe end of the kernel: a copy may still read its LDS}}
  tt.return
}

// A copy that arrives at an mbarrier may be waited for by other warps.
tt.func public @arrives(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #s, #smem, mutable>
  %t = amdg.async_tdm_copy_global_to_local %d into %m, barrier = %bar : !tt.tensordesc<128xf32, #s>, !ttg.memdesc<1xi64, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  tt.return
}
}

// -----

// On VMcnt the end of a wave waits by itself.
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
tt.func public @gfx950(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %t = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  ttg.async_commit_group
  tt.return
}
}

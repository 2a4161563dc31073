// Slots that may be the same one although they are written differently.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// With n = 1 the loop does not run, for its upper bound is -1, and the slot that is read is 1.
tt.func public @upper_below_lower(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<3x128xf32, #s, #smem, mutable>
  %u = arith.subi %n, %c2 : i32
  %s0 = ttg.memdesc_index %m[%c1] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %s0 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %u step %c1 : i32 {
    %w = ttg.async_wait {num = 0 : i32}
  }
  %k = arith.remsi %n, %c3 : i32
  %s1 = ttg.memdesc_index %m[%k] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{without running it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %s1 : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// With n = -3 the loop does not run, and the slot is 1: an unsigned remainder says nothing of the sign.
tt.func public @unsigned_remainder(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c7 = arith.constant 7 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %s1 = ttg.memdesc_index %m[%c1] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %s1 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %n step %c1 : i32 {
    %w = ttg.async_wait {num = 0 : i32}
  }
  %k = arith.remui %n, %c2 : i32
  %v = ttg.memdesc_index %m[%k] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{without running it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %v : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// Nor does a remainder that is no slot.
tt.func public @another_remainder(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c7 = arith.constant 7 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %s1 = ttg.memdesc_index %m[%c1] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %s1 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %n step %c1 : i32 {
    %w = ttg.async_wait {num = 0 : i32}
  }
  %other = arith.remsi %n, %c7 : i32
  %k = arith.andi %n, %c1 : i32
  %v = ttg.memdesc_index %m[%k] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{without running it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %v : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// With n = -7 the first slot is 0, which is in range, and the second one is 1.
tt.func public @a_slot_of_other_buffers(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c7 = arith.constant 7 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %s1 = ttg.memdesc_index %m[%c1] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %s1 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %n step %c1 : i32 {
    %w = ttg.async_wait {num = 0 : i32}
  }
  %seven = ttg.local_alloc : () -> !ttg.memdesc<7x128xf32, #s, #smem, mutable>
  %other = arith.remsi %n, %c7 : i32
  %first = ttg.memdesc_index %seven[%other] : !ttg.memdesc<7x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %k = arith.andi %n, %c1 : i32
  %v = ttg.memdesc_index %m[%k] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{without running it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %v : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}
}

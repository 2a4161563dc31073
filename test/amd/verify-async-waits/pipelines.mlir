// Pipelines with several buffers: each is right as it is, and wrong with a number one higher.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Three buffers, slot i % 3, two groups ahead; the last two iterations behind the loop.
tt.func public @modulo(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<3x128xf32, #s, #smem, mutable>
  %a = ttg.memdesc_index %m[%c0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %ta = ttg.async_copy_global_to_local %p, %a : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %ga = ttg.async_commit_group tokens %ta
  %d = ttg.memdesc_index %m[%c1] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %td = ttg.async_copy_global_to_local %p, %d : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %gd = ttg.async_commit_group tokens %td
  %end = arith.subi %n, %c2 : i32
  scf.for %i = %c0 to %end step %c1 : i32 {
    %w = ttg.async_wait {num = 1 : i32}
    %i0 = arith.remsi %i, %c3 : i32
    %r = ttg.memdesc_index %m[%i0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %x = ttg.local_load %r : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    %j = arith.addi %i, %c2 : i32
    %j0 = arith.remsi %j, %c3 : i32
    %f = ttg.memdesc_index %m[%j0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %f : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
  }
  %w1 = ttg.async_wait {num = 1 : i32}
  %e0 = arith.remsi %end, %c3 : i32
  %y = ttg.memdesc_index %m[%e0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %ly = ttg.local_load %y : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %w0 = ttg.async_wait {num = 0 : i32}
  %e = arith.subi %n, %c1 : i32
  %e1 = arith.remsi %e, %c3 : i32
  %z = ttg.memdesc_index %m[%e1] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %lz = ttg.local_load %z : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

// The same with num = 2: the wait lets the group through that is read; so does the one behind.
tt.func public @modulo_two(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %m = ttg.local_alloc : () -> !ttg.memdesc<3x128xf32, #s, #smem, mutable>
  %a = ttg.memdesc_index %m[%c0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %ta = ttg.async_copy_global_to_local %p, %a : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %ga = ttg.async_commit_group tokens %ta
  %d = ttg.memdesc_index %m[%c1] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %td = ttg.async_copy_global_to_local %p, %d : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %gd = ttg.async_commit_group tokens %td
  %end = arith.subi %n, %c2 : i32
  scf.for %i = %c0 to %end step %c1 : i32 {
    %w = ttg.async_wait {num = 2 : i32}
    %i0 = arith.remsi %i, %c3 : i32
    %r = ttg.memdesc_index %m[%i0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    // expected-note @+2 {{lets 2 groups in flight, but only 1 group was certainly issued after the copy: at most 1 is safe}}
    // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
    %x = ttg.local_load %r : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    %j = arith.addi %i, %c2 : i32
    %j0 = arith.remsi %j, %c3 : i32
    %f = ttg.memdesc_index %m[%j0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %f : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
  }
  %w1 = ttg.async_wait {num = 2 : i32}
  %e0 = arith.remsi %end, %c3 : i32
  %y = ttg.memdesc_index %m[%e0] : !ttg.memdesc<3x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %ly = ttg.local_load %y : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %drained = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// Buffers that change places, and a rotating index; the read comes before the next fill.
tt.func public @places(%p: tensor<128x!tt.ptr<f32>, #b>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %a = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %d = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %m = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #s, #smem, mutable>
  %m0 = ttg.memdesc_index %m[%c0] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %ta = ttg.async_copy_global_to_local %p, %a : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %tm = ttg.async_copy_global_to_local %p, %m0 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %ga = ttg.async_commit_group tokens %ta, %tm
  %r:3 = scf.for %i = %c0 to %n step %c1 iter_args(%cur = %a, %next = %d, %k = %c0) -> (!ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<128xf32, #s, #smem, mutable>, i32) : i32 {
    %k1 = arith.addi %k, %c1 : i32
    %less = arith.cmpi slt, %k1, %c2 : i32
    %k2 = arith.select %less, %k1, %c0 : i32
    %f = ttg.memdesc_index %m[%k2] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %next : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %u = ttg.async_copy_global_to_local %p, %f : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t, %u
    %w = ttg.async_wait {num = 1 : i32}
    %x = ttg.local_load %cur : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    %e = ttg.memdesc_index %m[%k] : !ttg.memdesc<2x128xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
    %y = ttg.local_load %e : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
    %z = ttg.local_load %f : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
    scf.yield %next, %cur, %k2 : !ttg.memdesc<128xf32, #s, #smem, mutable>, !ttg.memdesc<128xf32, #s, #smem, mutable>, i32
  }
  %drained = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// Parts of a buffer that do not overlap; a part that does.
tt.func public @parts(%p: tensor<64x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<256xf32, #s, #smem, mutable>
  %a = ttg.memdesc_subslice %m[0] : !ttg.memdesc<256xf32, #s, #smem, mutable> -> !ttg.memdesc<64xf32, #s, #smem, mutable, 256>
  %d = ttg.memdesc_subslice %m[64] : !ttg.memdesc<256xf32, #s, #smem, mutable> -> !ttg.memdesc<64xf32, #s, #smem, mutable, 256>
  %e = ttg.memdesc_subslice %m[0] : !ttg.memdesc<256xf32, #s, #smem, mutable> -> !ttg.memdesc<128xf32, #s, #smem, mutable, 256>
  %t = ttg.async_copy_global_to_local %p, %d : tensor<64x!tt.ptr<f32>, #b> -> <64xf32, #s, #smem, mutable, 256>
  %g = ttg.async_commit_group tokens %t
  %x = ttg.local_load %a : !ttg.memdesc<64xf32, #s, #smem, mutable, 256> -> tensor<64xf32, #b>
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %y = ttg.local_load %e : !ttg.memdesc<128xf32, #s, #smem, mutable, 256> -> tensor<128xf32, #b>
  %drained = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}
}

// Groups of cp.async on NVIDIA: a wait names how many may stay in flight, and its tokens do not get to
// the hardware.

// RUN: triton-opt %s --host=none -split-input-file -verify-diagnostics -triton-ext-verify-async-waits

#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// Three buffers, two groups in flight: the oldest one is read.  The index of the read starts below 0,
// as Triton's pipeliner writes it.
tt.func public @pipelined(%p: tensor<512x!tt.ptr<f32>, #b>, %n: i32) {
  %c-1 = arith.constant -1 : i32
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %buffers = ttg.local_alloc : () -> !ttg.memdesc<3x512xf32, #s, #smem, mutable>
  %b0 = ttg.memdesc_index %buffers[%c0] : !ttg.memdesc<3x512xf32, #s, #smem, mutable> -> !ttg.memdesc<512xf32, #s, #smem, mutable>
  %t0 = ttg.async_copy_global_to_local %p, %b0 : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %t0
  %b1 = ttg.memdesc_index %buffers[%c1] : !ttg.memdesc<3x512xf32, #s, #smem, mutable> -> !ttg.memdesc<512xf32, #s, #smem, mutable>
  %t1 = ttg.async_copy_global_to_local %p, %b1 : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %t1
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%insert = %c1, %extract = %c-1) -> (i32, i32) : i32 {
    %e1 = arith.addi %extract, %c1 : i32
    %wraps = arith.cmpi sge, %e1, %c3 : i32
    %e = arith.select %wraps, %c0, %e1 : i32
    %w = ttg.async_wait {num = 1 : i32}
    %read = ttg.memdesc_index %buffers[%e] : !ttg.memdesc<3x512xf32, #s, #smem, mutable> -> !ttg.memdesc<512xf32, #s, #smem, mutable>
    %x = ttg.local_load %read token %w : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512xf32, #b>
    %i1 = arith.addi %insert, %c1 : i32
    %wraps2 = arith.cmpi sge, %i1, %c3 : i32
    %f = arith.select %wraps2, %c0, %i1 : i32
    %fill = ttg.memdesc_index %buffers[%f] : !ttg.memdesc<3x512xf32, #s, #smem, mutable> -> !ttg.memdesc<512xf32, #s, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %fill : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
    scf.yield %f, %e : i32, i32
  }
  tt.return
}
}

// -----

#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// The wait has the right token and the wrong number.
tt.func public @number_decides(%p: tensor<512x!tt.ptr<f32>, #b>) {
  %buffer = ttg.local_alloc : () -> !ttg.memdesc<512xf32, #s, #smem, mutable>
  %t = ttg.async_copy_global_to_local %p, %buffer : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %t
  %w = ttg.async_wait %g {num = 1 : i32}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %x = ttg.local_load %buffer token %w : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512xf32, #b>
  tt.return
}
}

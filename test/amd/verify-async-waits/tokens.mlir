// Tokens: those of copies, commits and waits tell what is waited for, others do not.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @chosen(%p: tensor<128x!tt.ptr<f32>, #b>, %c: i1) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %n = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %n : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %t = arith.select %c, %g, %g1 : !ttg.async.token
  %w = ttg.async_wait %t {num = 0 : i32}
  // expected-note @+2 {{waits for its tokens only; none is of this copy or a newer one}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}
}

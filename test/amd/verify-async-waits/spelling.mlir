// Types behind aliases and results without names, which only people write.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
!buffer = !ttg.memdesc<128xf32, #s, #smem, mutable>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @aliases(%d: !tt.tensordesc<128xf32, #s>) {
  %m = ttg.local_alloc : () -> !buffer
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<128xf32, #s> -> !buffer
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !buffer -> tensor<128xf32, #b>
  %end_tdm = amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

tt.func public @without_names(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  ttg.async_commit_group
  ttg.async_wait {num = 0 : i32}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}
}

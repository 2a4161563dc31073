// Waits for groups: what is covered, what is not, and the numbers that would do.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// The older group is waited for, the newer one is not; both reads that need it are reported.
tt.func public @straight(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %o = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %3 = ttg.async_commit_group tokens %2
  %w = ttg.async_wait {num = 1 : i32}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  // expected-note @+2 {{lets 1 group in flight, but only 0 groups were certainly issued after the copy: at most 0 is safe}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %q = ttg.local_load %o : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %w2 = ttg.async_wait {num = 3 : i32}
  // expected-error @+1 {{unsafe write to LDS: a copy may still write it}}
  ttg.local_store %q, %o : tensor<128xf32, #b> -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// What is not committed is not waited for.
tt.func public @uncommitted(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %w = ttg.async_wait {num = 0 : i32}
  // expected-note @+2 {{waits for committed groups; the copy is not committed before it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// Not by its token either.
tt.func public @uncommitted_token(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %w = ttg.async_wait %0 {num = 0 : i32}
  // expected-note @+2 {{waits for committed groups; the copy, which it names, is not committed}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// A wait in one branch covers nothing on the other.
tt.func public @branch(%p: tensor<128x!tt.ptr<f32>, #b>, %c: i1) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  scf.if %c {
    %w = ttg.async_wait {num = 0 : i32}
  }
  // expected-note @+3 {{there is no wait in between on this path}}
  // expected-note @+2 {{without running it}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}
}

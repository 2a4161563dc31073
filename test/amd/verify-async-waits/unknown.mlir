// Operations and functions of which nothing is known may read and write every buffer they get.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @operation(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g = ttg.async_commit_group tokens %0
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe use of LDS: a copy may still read it}}
  amdg.some_operation %m : !ttg.memdesc<128xf32, #s, #smem, mutable>
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

tt.func private @elsewhere(!ttg.memdesc<128xf32, #s, #smem, mutable>)
tt.func public @callee(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g = ttg.async_commit_group tokens %0
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe use of LDS: a copy may still write it}}
  tt.call @elsewhere(%m) : (!ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// With regions as well.
tt.func public @regions(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g = ttg.async_commit_group tokens %0
  // expected-note @+2 {{there is no wait in between on this path}}
  // expected-error @+1 {{unsafe use of LDS: a copy may still read it}}
  "test.regions"(%m) ({
    "test.end"() : () -> ()
  }) : (!ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}

// What it was given is there, and what it may write is no longer read.
tt.func public @covered(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = amdg.async_copy_local_to_global %m, %p : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128x!tt.ptr<f32>, #b>
  %g = ttg.async_commit_group tokens %0
  %w = ttg.async_wait {num = 0 : i32}
  amdg.some_operation %m : !ttg.memdesc<128xf32, #s, #smem, mutable>
  tt.call @elsewhere(%m) : (!ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  %end = amdg.async_wait {num_inst = 0 : i32}
  tt.return
}
}

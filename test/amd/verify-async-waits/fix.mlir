// Numbers that are changed where a proof exists, and remarks about those that could be.

// RUN: triton-opt %s --triton-ext-verify-async-waits=fix=unsafe | FileCheck %s --check-prefixes=CHECK,UNSAFE
// RUN: triton-opt %s --triton-ext-verify-async-waits=fix=all | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: triton-opt %s --triton-ext-verify-async-waits=fix=unsafe --triton-ext-verify-async-waits=report=all --verify-diagnostics

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// CHECK-LABEL: @numbers
tt.func public @numbers(%p: tensor<128x!tt.ptr<f32>, #b>) {
  // Nothing was issued before: it is of no use, and nothing tells what else it should be.
  // CHECK: ttg.async_wait {num = 0 : i32}
  // expected-remark @+1 {{useless wait: nothing that it waits for can be in flight}}
  %w = ttg.async_wait {num = 0 : i32}
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %o = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %3 = ttg.async_commit_group tokens %2
  // One group may stay in flight.
  // UNSAFE: ttg.async_wait {num = 0 : i32}
  // ALL: ttg.async_wait {num = 1 : i32}
  // expected-remark @+1 {{waits longer than it has to: 0 groups are let in flight, 1 would do}}
  %w1 = ttg.async_wait {num = 0 : i32}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  %4 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %5 = ttg.async_commit_group tokens %4
  // Unsafe: one group is behind the one that is read.
  // UNSAFE: ttg.async_wait {num = 0 : i32}
  // ALL: ttg.async_wait {num = 0 : i32}
  %w2 = ttg.async_wait {num = 7 : i32}
  %q = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}

// The tokens decide on this GPU; the number says something else.
// CHECK-LABEL: @tokens
tt.func public @tokens(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  // CHECK: num = 7
  // expected-remark @+1 {{num = 7 lets through what the tokens of this wait request}}
  %w = ttg.async_wait %1 {num = 7 : i32}
  %r = ttg.local_load %m : !ttg.memdesc<128xf32, #s, #smem, mutable> -> tensor<128xf32, #b>
  tt.return
}
// Nothing is read behind the wait, but the kernel ends.
// CHECK-LABEL: @end
tt.func public @end(%p: tensor<128x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  // CHECK: ttg.async_wait {num = 0 : i32}
  %w = ttg.async_wait {num = 7 : i32}
  tt.return
}
}

// Waits for tokens: what is awaited is what has them, whatever `num` says.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Of several tokens the newest decides.
// CHECK-LABEL: @newest_token(
tt.func public @newest_token(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: amdg.async_wait {{.*}}num_inst = 5 :
  %w0 = ttg.async_wait %g0 {num = 0 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 4 :
  %w1 = ttg.async_wait %g0, %g1 {num = 0 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w2 = ttg.async_wait %g2, %g0 {num = 7 : i32}
  tt.return
}

// Of two branches the shorter one counts.
// CHECK-LABEL: @token_behind_branches(
tt.func public @token_behind_branches(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  scf.if %c {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
  } else {
    %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait %g0 {num = 0 : i32}
  tt.return
}

// Four iterations of 4 instructions; a number of iterations that is not known may be none.
// CHECK-LABEL: @token_behind_loops(
tt.func public @token_behind_loops(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %c4 step %c1 : i32 {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 16 :
  %w0 = ttg.async_wait %g0 {num = 0 : i32}
  scf.for %i = %c0 to %n step %c1 : i32 {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 16 :
  %w1 = ttg.async_wait %g0 {num = 0 : i32}
  tt.return
}

// From before the loop 1 instruction is newer than %g0, from the iteration before 4 are newer than
// %g1, and so on: the first iteration decides.
// CHECK-LABEL: @carried(
tt.func public @carried(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %g0, %y = %g1) -> (!ttg.async.token, !ttg.async.token) : i32 {
    // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
    %wl = ttg.async_wait %x {num = 0 : i32}
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    scf.yield %y, %g2 : !ttg.async.token, !ttg.async.token
  }
  tt.return
}

// The first result is the group of the last iteration but one: 4 newer instructions, or 1 where the
// loop did not run.  The host counts what stands behind the loop only.
// CHECK-LABEL: @loop_results(
tt.func public @loop_results(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %g0, %y = %g1) -> (!ttg.async.token, !ttg.async.token) : i32 {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    scf.yield %y, %g2 : !ttg.async.token, !ttg.async.token
  }
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait %r#0 {num = 0 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w1 = ttg.async_wait %r#1 {num = 0 : i32}
  tt.return
}

// The token of a branch, and what was issued behind it in the branch.
// CHECK-LABEL: @branch_results(
tt.func public @branch_results(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %r = scf.if %c -> (!ttg.async.token) {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
    %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    scf.yield %g1 : !ttg.async.token
  } else {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
    scf.yield %g0 : !ttg.async.token
  }
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait %r {num = 0 : i32}
  tt.return
}

// The newest group of each iteration, then that of the start.  The host knows nothing of them.
// CHECK-LABEL: @while_arguments(
tt.func public @while_arguments(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r = scf.while (%x = %g0) : (!ttg.async.token) -> !ttg.async.token {
    // HOST: amdg.async_wait {{.*}}num_inst = 0 :
    // EXT: amdg.async_wait {{.*}}num_inst = 1 :
    %w0 = ttg.async_wait %x {num = 0 : i32}
    scf.condition(%c) %x : !ttg.async.token
  } do {
^bb0(%y: !ttg.async.token):
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    %3 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g3 = ttg.async_commit_group tokens %3
    scf.yield %g2 : !ttg.async.token
  }
  tt.return
}
}

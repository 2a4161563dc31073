// Tokens that a loop carries unchanged or exchanges.  The process of upstream's pass dies of them.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: not triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 2>&1 | FileCheck %s --check-prefix=HOST
// HOST: error: {{.*}}tritonamdgpu-update-async-wait-count
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// The same group in each iteration; 1 instruction is newer, and what each iteration adds.
// CHECK-LABEL: @unchanged_token(
tt.func public @unchanged_token(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%x = %g0) -> (!ttg.async.token) : i32 {
    // EXT: amdg.async_wait {{.*}}num_inst = 1 :
    %wl = ttg.async_wait %x {num = 0 : i32}
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    scf.yield %x : !ttg.async.token
  }
  tt.return
}

// The older of the two comes first, with 1 newer instruction; then the newer one with none.
// CHECK-LABEL: @exchanged_tokens(
tt.func public @exchanged_tokens(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %g0, %y = %g1) -> (!ttg.async.token, !ttg.async.token) : i32 {
    // EXT: amdg.async_wait {{.*}}num_inst = 0 :
    %wl = ttg.async_wait %x {num = 0 : i32}
    scf.yield %y, %x : !ttg.async.token, !ttg.async.token
  }
  tt.return
}
}

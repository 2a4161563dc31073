// gfx950 from 3.8 on: waits become LLVM's asynchronous marks, one for each commit, and LLVM counts.
// Of a wait with tokens only `num` gets there: it becomes the number of newer groups.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx950 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton-3.8-or-newer

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// What counts groups already stays.
// CHECK-LABEL: @by_number(
tt.func public @by_number(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<256x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<256xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // CHECK: ttg.async_wait {{.*}}num = 1 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Behind a mark a negative number waits for nothing; what it asks for is everything.
// CHECK-LABEL: @negative(
tt.func public @negative(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  // HOST: ttg.async_wait {{.*}}num = -1 :
  // EXT: ttg.async_wait {{.*}}num = 0 :
  %w0 = ttg.async_wait {num = -1 : i32}
  tt.return
}

// Two groups are newer than %g0, one than %g1.  A smaller number than that stays.
// CHECK-LABEL: @by_token(
tt.func public @by_token(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<256x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<256xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  // HOST: ttg.async_wait {{.*}}num = 7 :
  // EXT: ttg.async_wait {{.*}}num = 2 :
  %w0 = ttg.async_wait %g0 {num = 7 : i32}
  // HOST: ttg.async_wait {{.*}}num = 7 :
  // EXT: ttg.async_wait {{.*}}num = 1 :
  %w1 = ttg.async_wait %g0, %g1 {num = 7 : i32}
  // CHECK: ttg.async_wait {{.*}}num = 0 :
  %w2 = ttg.async_wait %g0 {num = 0 : i32}
  tt.return
}

// The group of the iteration before the last, then of the start: one newer group.
// CHECK-LABEL: @by_carried_token(
tt.func public @by_carried_token(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<256x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<256xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %g0, %y = %g1) -> (!ttg.async.token, !ttg.async.token) : i32 {
    // HOST: ttg.async_wait {{.*}}num = 3 :
    // EXT: ttg.async_wait {{.*}}num = 1 :
    %wl = ttg.async_wait %x {num = 3 : i32}
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g2 = ttg.async_commit_group tokens %2
    scf.yield %y, %g2 : !ttg.async.token, !ttg.async.token
  }
  tt.return
}
}

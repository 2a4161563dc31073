// Numbers that nobody means: a negative one asks for everything, and of a huge one no more is counted
// back than any counter can hold.

// RUN: triton-opt %s --host=none --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#s2 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// CHECK-LABEL: @negative(
tt.func public @negative(%d: !tt.tensordesc<64x64xf16, #s2>, %m: !ttg.memdesc<64x64xf16, #s2, #smem, mutable>, %p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<64x64xf16, #s2> -> !ttg.memdesc<64x64xf16, #s2, #smem, mutable>
  // CHECK: count = 0 :
  %1 = amdg.async_tdm_wait  {num = -1 : i32}
  %2 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %3 = ttg.async_commit_group tokens %2
  // CHECK: num_inst = 0 :
  %4 = ttg.async_wait {num = -2 : i32}
  tt.return
}

// Nothing is committed: a wait for 0 groups lets the copy through, a negative number does not.
// CHECK-LABEL: @not_committed(
tt.func public @not_committed(%p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  // CHECK: num_inst = 1 :
  %1 = ttg.async_wait {num = 0 : i32}
  // CHECK: num_inst = 0 :
  %2 = ttg.async_wait {num = -1 : i32}
  tt.return
}

// CHECK-LABEL: @huge(
tt.func public @huge(%p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  scf.for %i = %c0 to %n step %c1 : i32 {
    %0 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %1 = ttg.async_commit_group tokens %0
    // CHECK: num_inst = 63 :
    %2 = ttg.async_wait {num = 2147483647 : i32}
  }
  tt.return
}

// The token of a choice: the newer of the two decides.
// CHECK-LABEL: @chosen(
tt.func public @chosen(%p: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %3 = ttg.async_commit_group tokens %2
  %t = arith.select %c, %1, %3 : !ttg.async.token
  %4 = ttg.async_copy_global_to_local %p, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %5 = ttg.async_commit_group tokens %4
  // CHECK: num_inst = 1 :
  %6 = ttg.async_wait %t {num = 0 : i32}
  tt.return
}
}

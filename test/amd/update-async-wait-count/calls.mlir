// A function that is called commits groups as well: they are newer than those before the call.
// Upstream's pass counts what stands in front of the call as if it were the last group, so that its
// wait lets the awaited copy itself pass.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Behind the group of 4 lies the one of the callee, of 1 instruction.
// CHECK-LABEL: @call_commits(
tt.func public @call_commits(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  tt.call @commits(%p, %m, %q, %o) : (tensor<512x!tt.ptr<f32>, #b>, !ttg.memdesc<512xf32, #s, #smem, mutable>, tensor<128x!tt.ptr<f32>, #b>, !ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  // HOST: amdg.async_wait {{.*}}num_inst = 4 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// What its callee awaits: 4 instructions are newer at one call, 1 at the other.
// CHECK-LABEL: @caller(
tt.func public @caller(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  tt.call @waits() : () -> ()
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  tt.call @waits() : () -> ()
  tt.return
}

// CHECK-LABEL: @commits(
tt.func private @commits(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) attributes {noinline = true} {
  %0 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  tt.return
}

// CHECK-LABEL: @waits(
tt.func private @waits() attributes {noinline = true} {
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

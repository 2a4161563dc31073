// Waits for groups in straight code, loops and branches: what upstream's pass says, and where it
// waits longer than it has to.  A copy of %p is 4 instructions of a wave (512 elements of 32 bits,
// 128 threads, one element an instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// Three groups of 4, 1 and 4: behind the last, the last two, and all of them.
// CHECK-LABEL: @straight
tt.func public @straight(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %3 = ttg.async_commit_group tokens %2
  %4 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %5 = ttg.async_commit_group tokens %4
  // CHECK: amdg.async_wait {{.*}}num_inst = 5 :
  %w2 = ttg.async_wait {num = 2 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 4 :
  %w1 = ttg.async_wait {num = 1 : i32}
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w0 = ttg.async_wait {num = 0 : i32}
  tt.return
}

// What was not committed is not waited for: num = 0 lets the last copy pass.
// CHECK-LABEL: @uncommitted
tt.func public @uncommitted(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w = ttg.async_wait {num = 0 : i32}
  tt.return
}

// The shorter branch decides.
// CHECK-LABEL: @branches
tt.func public @branches(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  scf.if %c {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
  } else {
    %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Four iterations of a group of 4: behind the last two lie 8.  The host leaves the loop after any.
// CHECK-LABEL: @four_iterations
tt.func public @four_iterations(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  scf.for %i = %c0 to %c4 step %c1 : i32 {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
  }
  // HOST: amdg.async_wait {{.*}}num_inst = 4 :
  // EXT: amdg.async_wait {{.*}}num_inst = 8 :
  %w = ttg.async_wait {num = 2 : i32}
  tt.return
}

// One group in flight in each iteration, from a group before the loop.
// CHECK-LABEL: @pipelined
tt.func public @pipelined(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  scf.for %i = %c0 to %n step %c1 : i32 {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
    // CHECK: amdg.async_wait {{.*}}num_inst = 4 :
    %w = ttg.async_wait {num = 1 : i32}
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 0 :
  %w = ttg.async_wait {num = 0 : i32}
  tt.return
}

// In the first iteration nothing is older than what may stay in flight: the second one decides.
// The host takes the start of the kernel for something to wait for.
// CHECK-LABEL: @start_of_kernel
tt.func public @start_of_kernel(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %n: i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  scf.for %i = %c0 to %n step %c1 : i32 {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
    // HOST: amdg.async_wait {{.*}}num_inst = 4 :
    // EXT: amdg.async_wait {{.*}}num_inst = 8 :
    %w = ttg.async_wait {num = 2 : i32}
  }
  tt.return
}

// The part of a while loop that decides runs once more than the other.
// CHECK-LABEL: @while
tt.func public @while(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  scf.while : () -> () {
    %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
    scf.condition(%c)
  } do {
    %2 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %3 = ttg.async_commit_group tokens %2
    scf.yield
  }
  // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
  %w = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Nothing of ours to count, and a wait that a person counted: neither changes.
// CHECK-LABEL: @unchanged
tt.func public @unchanged(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %1 = ttg.async_commit_group tokens %0
  // CHECK: amdg.async_wait {num_inst = 3 : i32}
  %w = amdg.async_wait {num_inst = 3 : i32}
  tt.return
}
}

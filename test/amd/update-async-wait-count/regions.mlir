// Waits behind control flow that upstream's pass does not walk through: there it gives up with 0.
// A copy of %p is 4 instructions of a wave (512 elements of 32 bits, 128 threads, one element an
// instruction), one of %q is 1.

// RUN: triton-opt %s --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s --check-prefixes=CHECK,EXT
// RUN: triton-opt %s --pass-provider=host --tritonamdgpu-update-async-wait-count=%{gfx-arch}=gfx1250 | FileCheck %s --check-prefixes=CHECK,HOST
// REQUIRES: triton

#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// A scan copies nothing.
// CHECK-LABEL: @scan(
tt.func public @scan(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %t: tensor<128xf32, #b>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  %r = "tt.scan"(%t) <{axis = 0 : i32, reverse = false}> ({
^bb0(%x: f32, %y: f32):
    %z = arith.addf %x, %y : f32
    tt.scan.return %z : f32
  }) : (tensor<128xf32, #b>) -> tensor<128xf32, #b>
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 4 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Two cases of 4 and 1 instructions.
// CHECK-LABEL: @index_switch(
tt.func public @index_switch(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %i: index) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  scf.index_switch %i
  case 2 {
    %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
    scf.yield
  }
  default {
    %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
    scf.yield
  }
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w0 = ttg.async_wait {num = 1 : i32}
  tt.return
}

// Two ways of 4 and 1 instructions.  The host stops at the start of the block.
// CHECK-LABEL: @blocks(
tt.func public @blocks(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>, %c: i1) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  cf.cond_br %c, ^bb1, ^bb2
^bb1:
  %1 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g1 = ttg.async_commit_group tokens %1
  cf.br ^bb3
^bb2:
  %2 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g2 = ttg.async_commit_group tokens %2
  cf.br ^bb3
^bb3:
  %3 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
  %g3 = ttg.async_commit_group tokens %3
  // HOST: amdg.async_wait {{.*}}num_inst = 1 :
  // EXT: amdg.async_wait {{.*}}num_inst = 2 :
  %w0 = ttg.async_wait {num = 2 : i32}
  tt.return
}

// The warps of the default region go on with what they had in flight, in it and behind it.
// Those of a partition start with nothing, so that one group in flight is one of their own.
// CHECK-LABEL: @specialized(
tt.func public @specialized(%p: tensor<512x!tt.ptr<f32>, #b>, %m: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q: tensor<128x!tt.ptr<f32>, #b>, %o: !ttg.memdesc<128xf32, #s, #smem, mutable>) {
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
  %g0 = ttg.async_commit_group tokens %0
  ttg.warp_specialize(%p, %m, %q, %o)
  default {
    %1 = ttg.async_copy_global_to_local %q, %o : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %g1 = ttg.async_commit_group tokens %1
    // HOST: amdg.async_wait {{.*}}num_inst = 0 :
    // EXT: amdg.async_wait {{.*}}num_inst = 1 :
    %w0 = ttg.async_wait {num = 1 : i32}
    ttg.warp_yield
  }
  partition0(%p0: tensor<512x!tt.ptr<f32>, #b>, %m0: !ttg.memdesc<512xf32, #s, #smem, mutable>, %q0: tensor<128x!tt.ptr<f32>, #b>, %o0: !ttg.memdesc<128xf32, #s, #smem, mutable>) num_warps(4) {
    %k0 = ttg.async_copy_global_to_local %p0, %m0 : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %h0 = ttg.async_commit_group tokens %k0
    %k1 = ttg.async_copy_global_to_local %q0, %o0 : tensor<128x!tt.ptr<f32>, #b> -> <128xf32, #s, #smem, mutable>
    %h1 = ttg.async_commit_group tokens %k1
    // CHECK: amdg.async_wait {{.*}}num_inst = 1 :
    %w1 = ttg.async_wait {num = 1 : i32}
    // HOST: amdg.async_wait {{.*}}num_inst = 0 :
    // EXT: amdg.async_wait {{.*}}num_inst = 5 :
    %w2 = ttg.async_wait {num = 2 : i32}
    ttg.warp_return
  } : (tensor<512x!tt.ptr<f32>, #b>, !ttg.memdesc<512xf32, #s, #smem, mutable>, tensor<128x!tt.ptr<f32>, #b>, !ttg.memdesc<128xf32, #s, #smem, mutable>) -> ()
  // HOST: amdg.async_wait {{.*}}num_inst = 0 :
  // EXT: amdg.async_wait {{.*}}num_inst = 1 :
  %w3 = ttg.async_wait {num = 1 : i32}
  tt.return
}
}

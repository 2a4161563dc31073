// Copies from LDS and the tensor data mover: sources that have to be there, slots that are filled
// again, loads and stores that do not wait for each other.

// RUN: triton-opt %s --triton-ext-verify-async-waits --verify-diagnostics
// REQUIRES: triton-3.7-or-newer

#b = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {

// A tile comes and goes through the tensor data mover.
tt.func public @tdm(%d: !tt.tensordesc<64x64xf16, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %o = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %1 = amdg.async_tdm_copy_global_to_local %d into %o : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %w1 = amdg.async_tdm_wait  {num = 1 : i32}
  %2 = amdg.async_tdm_copy_local_to_global %d from %m : !ttg.memdesc<64x64xf16, #s, #smem, mutable> -> !tt.tensordesc<64x64xf16, #s>
  // expected-note @+2 {{lets 1 operation in flight, but only 0 operations were certainly issued after the copy}}
  // expected-error @+1 {{unsafe copy from LDS: its data may not have arrived}}
  %3 = amdg.async_tdm_copy_local_to_global %d from %o : !ttg.memdesc<64x64xf16, #s, #smem, mutable> -> !tt.tensordesc<64x64xf16, #s>
  // The older of two stores is done, the newer one still reads.
  %w = amdg.async_tdm_wait  {num = 1 : i32}
  %4 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  // expected-error @+1 {{unsafe write to LDS: a copy may still read it}}
  %5 = amdg.async_tdm_copy_global_to_local %d into %o : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %end_tdm = amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

// Numbers of instructions, as a pass leaves them.
tt.func public @counted(%d: !tt.tensordesc<64x64xf16, #s>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %o = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %0 = amdg.async_tdm_copy_global_to_local %d into %m : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %1 = amdg.async_tdm_copy_global_to_local %d into %o : !tt.tensordesc<64x64xf16, #s> -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
  %w2 = amdg.async_tdm_intrinsic_wait  {count = 2 : i32}
  // expected-note @+2 {{lets 2 instructions in flight, but only 1 instruction was certainly issued after the copy: at most 1 is safe}}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %x = ttg.local_load %m : !ttg.memdesc<64x64xf16, #s, #smem, mutable> -> tensor<64x64xf16, #b>
  %w1 = amdg.async_tdm_intrinsic_wait  {count = 1 : i32}
  %y = ttg.local_load %m : !ttg.memdesc<64x64xf16, #s, #smem, mutable> -> tensor<64x64xf16, #b>
  %end_tdm = amdg.async_tdm_wait {num = 0 : i32}
  tt.return
}

// Stores retire in any order against loads: those behind the load do not count.
tt.func public @mixed(%p: tensor<4x32x!tt.ptr<f32>, #b>) {
  %m = ttg.local_alloc : () -> !ttg.memdesc<4x32xf32, #s, #smem, mutable>
  %v = arith.constant dense<0.0> : tensor<4x32xf32, #b>
  %o = ttg.local_alloc %v : (tensor<4x32xf32, #b>) -> !ttg.memdesc<4x32xf32, #s, #smem, mutable>
  %0 = ttg.async_copy_global_to_local %p, %m : tensor<4x32x!tt.ptr<f32>, #b> -> <4x32xf32, #s, #smem, mutable>
  %1 = amdg.async_copy_local_to_global %o, %p : !ttg.memdesc<4x32xf32, #s, #smem, mutable> -> tensor<4x32x!tt.ptr<f32>, #b>
  %w1 = amdg.async_wait {num_inst = 1 : i32}
  // expected-error @+1 {{unsafe read of LDS: data may not have arrived}}
  %x = ttg.local_load %m : !ttg.memdesc<4x32xf32, #s, #smem, mutable> -> tensor<4x32xf32, #b>
  // expected-error @+1 {{unsafe write to LDS: a copy may still read it}}
  ttg.local_store %v, %o : tensor<4x32xf32, #b> -> !ttg.memdesc<4x32xf32, #s, #smem, mutable>
  %w0 = amdg.async_wait {num_inst = 0 : i32}
  %y = ttg.local_load %m : !ttg.memdesc<4x32xf32, #s, #smem, mutable> -> tensor<4x32xf32, #b>
  ttg.local_store %v, %o : tensor<4x32xf32, #b> -> !ttg.memdesc<4x32xf32, #s, #smem, mutable>
  tt.return
}
}

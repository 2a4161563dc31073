// What each copy got, what keeps it from more, and which copies will not compile.

// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 -verify-diagnostics

#few = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#rows = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [16, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#line = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

tt.func public @widest(%p: tensor<64x64x!tt.ptr<f16>, #rows> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[2, 16]> : tensor<2xi32>, tt.constancy = dense<[1, 1]> : tensor<2xi32>}, %m: !ttg.memdesc<64x64xf16, #shared, #smem, mutable>) {
  // expected-remark @+1 {{asynchronous copy of 16 bytes an instruction (2 instructions), before 16 bytes an instruction (2 instructions)}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x64x!tt.ptr<f16>, #rows> -> <64x64xf16, #shared, #smem, mutable>
  tt.return
}

// A wave has 64 lanes, of which each has to write.
tt.func public @few(%p: tensor<32x!tt.ptr<f32>, #few>, %m: !ttg.memdesc<32xf32, #line, #smem, mutable>) {
  // expected-warning @+2 {{asynchronous copy of 4 bytes an instruction (1 instruction): a wave of gfx950 writes one run of 256 bytes at least, and there are 128; it will not compile}}
  // expected-note @+1 {{the pointers are known to be contiguous over 1 element of dimension 0}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<32x!tt.ptr<f32>, #few> -> <32xf32, #line, #smem, mutable>
  tt.return
}

// All is known, and 2 bytes of a lane or 32 lanes of 4 are all there is: no layout helps.
tt.func public @few_of_two_bytes(%p: tensor<64x!tt.ptr<f16>, #few> {tt.contiguity = dense<64> : tensor<1xi32>, tt.divisibility = dense<16> : tensor<1xi32>, tt.constancy = dense<1> : tensor<1xi32>}, %m: !ttg.memdesc<64xf16, #line, #smem, mutable>) {
  // expected-warning @+1 {{asynchronous copy of 2 bytes an instruction (1 instruction): a wave of gfx950 writes one run of 256 bytes at least, and there are 128; it will not compile}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f16>, #few> -> <64xf16, #line, #smem, mutable>
  tt.return
}
}

// A GPU without copies to LDS, and one that is not known.
// RUN: triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx1201 2>&1 | FileCheck %s --check-prefix=NONE
// NONE-NOT: asynchronous copy of
// RUN: not triton-opt %s --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx90a 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: expected a GPU with asynchronous copies to LDS (gfx942, gfx950, gfx1250, gfx1251), found 'gfx90a'

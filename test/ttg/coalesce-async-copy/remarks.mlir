// What each copy got, and what keeps it from more.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy -verify-diagnostics

#one = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#four = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#rows = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], order = [1, 0]}>
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#swizzled = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 2, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

tt.func public @widest(%p: tensor<512x!tt.ptr<f32>, #four> {tt.contiguity = 512 : i32, tt.divisibility = 16 : i32}, %m: !ttg.memdesc<512xf32, #shared, #smem, mutable>) {
  // expected-remark @+1 {{asynchronous copy of 16 bytes an instruction (1 instruction)}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #four> -> <512xf32, #shared, #smem, mutable>
  tt.return
}

tt.func public @nothing_known(%p: tensor<64x!tt.ptr<f32>, #four>, %m: !ttg.memdesc<64xf32, #shared, #smem, mutable>) {
  // expected-remark @+2 {{asynchronous copy of 4 bytes an instruction (1 instruction), before 4 bytes an instruction (4 instructions)}}
  // expected-note @+1 {{the pointers are known to be contiguous over 1 element of dimension 0}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #four> -> <64xf32, #shared, #smem, mutable>
  tt.return
}

tt.func public @refused(%p: tensor<64x!tt.ptr<i8>, #four>, %m: !ttg.memdesc<64xi8, #shared, #smem, mutable>) {
  // expected-warning @+2 {{asynchronous copy of 1 byte an instruction (4 instructions): no instruction copies less than 4 bytes, it will not compile}}
  // expected-note @+1 {{the pointers are known to be contiguous over 1 element of dimension 0}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<i8>, #four> -> <64xi8, #shared, #smem, mutable>
  tt.return
}

tt.func public @hint(%p: tensor<512x!tt.ptr<f32>, #four>, %m: !ttg.memdesc<512xf32, #shared, #smem, mutable>) {
  // expected-remark @+3 {{asynchronous copy of 8 bytes an instruction (2 instructions)}}
  // expected-note @+2 {{the attribute contiguity says 2 elements}}
  // expected-note @+1 {{the pointers are known to be contiguous over 1 element of dimension 0}}
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 2 : i32} : tensor<512x!tt.ptr<f32>, #four> -> <512xf32, #shared, #smem, mutable>
  tt.return
}

tt.func public @large(%p: tensor<512x!tt.ptr<f32>, #one> {tt.contiguity = 512 : i32, tt.divisibility = 16 : i32}, %m: !ttg.memdesc<512xf32, #shared, #smem, mutable>) {
  // expected-remark @+2 {{asynchronous copy of 4 bytes an instruction (4 instructions)}}
  // expected-note @+1 {{a thread holds 1 element side by side; a conversion of the pointers may cost more than wider instructions save}}
  %t = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #one> -> <512xf32, #shared, #smem, mutable>
  tt.return
}

tt.func public @swizzled(%p: tensor<64x16x!tt.ptr<i8>, #rows>, %m: !ttg.memdesc<64x16xi8, #swizzled, #smem, mutable>) {
  // expected-remark @+2 {{asynchronous copy of 8 bytes an instruction (1 instruction), before 8 bytes an instruction (2 instructions)}}
  // expected-note @+1 {{the buffer has runs of 8 elements along dimension 1}}
  %t = ttg.async_copy_global_to_local %p, %m {contiguity = 16 : i32} : tensor<64x16x!tt.ptr<i8>, #rows> -> <64x16xi8, #swizzled, #smem, mutable>
  tt.return
}
}

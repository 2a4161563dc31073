// RUN: triton-opt --host=none %s -split-input-file -verify-diagnostics
// RUN: %if triton-3.8-or-newer %{ triton-opt --host=always %s -split-input-file -verify-diagnostics=only-expected %}
// RUN: sed -E 's/(tensordesc_im2col)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir -split-input-file -verify-diagnostics
// RUN: %if triton-3.7 %{ triton-opt --host=always %t.mlir -split-input-file -verify-diagnostics=only-expected %}

// What an im2col copy cannot be, in the spelling of Triton 3.8 and newer, and in that of 3.7 (the block as
// a tensor).  Each error is found without Triton; where two texts are expected, the second is Triton's.

// The TMA unit walks over 1 to 3 spatial dimensions, between images and channels.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank2(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // expected-error-re @+1 {{{{expected 3 to 5 coordinates with an im2col descriptor at .*, found 2|IM2COL mode requires at least 3D coordinates, but got 2D}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank6(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected 3 to 5 coordinates with an im2col descriptor at .*, found 6|IM2COL mode supports at most 5D coordinates, but got 6D}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i, %i, %i, %i] offsets = [%o, %o, %o, %o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// Rank 3 has one spatial dimension, rank 4 two, rank 5 three; each has a filter offset.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank3_two_offsets(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected 1 offset, one for each spatial dimension of 3 coordinates at .*, found 2|3D coordinates requires 1 offsets, but got 2}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o, %o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank4_no_offsets(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // expected-error-re @+1 {{{{expected 2 offsets, one for each spatial dimension of 4 coordinates at .*, found 0|IM2COL mode requires offsets to be provided}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i, %i] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank5_two_offsets(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected 3 offsets, one for each spatial dimension of 5 coordinates at .*, found 2|5D coordinates requires 3 offsets, but got 2}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i, %i, %i] offsets = [%o, %o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// Coordinates are i32 and offsets are i16.  (A note of Triton's parser says where the value got its type.)

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @wide_coordinate(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i64, %o: i16) {
  // expected-error-re @+1 {{{{expected 'i32' as the type of coordinate 0 at .*, found 'i64'|'%i' expects different type than prior uses: 'i32' vs 'i64'}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @wide_offset(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i32) {
  // expected-error-re @+1 {{{{expected 'i16' as the type of offset 0 at .*, found 'i32'|'%o' expects different type than prior uses: 'i16' vs 'i32'}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// The block is pixels x channels, whatever the rank of the tensor.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
// expected-error-re @+1 {{{{expected a block of rank 2 \(pixels x channels\), found rank 3|TensorDescIm2ColType requires rank-2 [a-zA-Z]*, got rank 3}}}}
tt.func @block_of_rank3(%x: !ttng.tensordesc_im2col<2x64x64xf16, #shared>) {
  tt.return
}

// -----

// The buffer holds the block: as many elements, of the same type, in the same layout.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @smaller_buffer(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<64x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected a buffer of 8192 elements, as many as the block has at .*, found 4096|descriptor block with 8192 elements}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @other_elements(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xbf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected a buffer of 'f16', the elements of the block at .*, found 'bf16'|element type 'f16' and tensor element type 'bf16'}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xbf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared1 = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @other_swizzle(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected a descriptor with swizzlingByteWidth = 64, as the buffer has, at .*, found 128|TMA descriptor layout must match shared layout}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<128x64xf16, #shared1, #smem, mutable>
  tt.return
}

// -----

// Through an im2col descriptor nothing is written.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#smem = #ttg.shared_memory
tt.func @store(%x: !ttng.tensordesc_im2col<128x64xf16, #shared>, %buf: !ttg.memdesc<128x64xf16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected a tiled tensor descriptor, .* at 'ttng.async_tma_copy_local_to_global'|operand #0 must be Tensor descriptor type}}}}
  ttng.async_tma_copy_local_to_global %x[%i, %i] %buf : !ttng.tensordesc_im2col<128x64xf16, #shared>, !ttg.memdesc<128x64xf16, #shared, #smem, mutable>
  tt.return
}

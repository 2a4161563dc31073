// RUN: triton-opt --host=none %s -split-input-file -verify-diagnostics
// RUN: %if triton-3.8-or-newer %{ triton-opt --host=always %s -split-input-file -verify-diagnostics=only-expected %}
// RUN: not triton-opt --host=none %s -split-input-file 2>&1 | FileCheck %s
// RUN: sed -E 's/(tensordesc)<([^<>]*)>/\1<tensor<\2>>/g' %s > %t.mlir
// RUN: triton-opt --host=none %t.mlir -split-input-file -verify-diagnostics
// RUN: %if triton-3.7 %{ triton-opt --host=always %t.mlir -split-input-file -verify-diagnostics=only-expected %}

// What a tiled copy cannot be, in the spelling of Triton 3.8 and newer, and in that of 3.6 and 3.7 (the
// block as a tensor).  Each error is found without Triton; where two texts are expected, the second is
// Triton's.  The first error is checked with its column.  3.6 is not asked: it accepts most of these and
// lowers them to something else.

// As many coordinates as the block has dimensions.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rank3(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // CHECK: invalid-tiled.mlir:[[#@LINE+2]]:3: error: expected 3 coordinates, one for each dimension of the block at 'ttng.async_tma_copy_global_to_local', found 2
  // expected-error-re @+1 {{{{expected 3 coordinates, one for each dimension of the block at .*, found 2|expected 3 coordinates, but got 2}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i] %buf, %bar, %p : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 4}>
#smem = #ttg.shared_memory
tt.func @store_rank4(%x: !tt.tensordesc<1x2x8x64xf16, #shared>, %buf: !ttg.memdesc<1x2x8x64xf16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected 4 coordinates, one for each dimension of the block at .*, found 5|expected 4 coordinates, but got 5}}}}
  ttng.async_tma_copy_local_to_global %x[%i, %i, %i, %i, %i] %buf : !tt.tensordesc<1x2x8x64xf16, #shared>, !ttg.memdesc<1x2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 5}>
#smem = #ttg.shared_memory
tt.func @reduce_rank5(%x: !tt.tensordesc<1x1x2x8x64xf16, #shared>, %buf: !ttg.memdesc<1x1x2x8x64xf16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected 5 coordinates, one for each dimension of the block at .*, found 3|expected 5 coordinates, but got 3}}}}
  ttng.async_tma_reduce add, %x[%i, %i, %i] %buf : !tt.tensordesc<1x1x2x8x64xf16, #shared>, !ttg.memdesc<1x1x2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// Offsets belong to im2col descriptors.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @offsets(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32, %o: i16) {
  // expected-error-re @+1 {{{{expected no offsets with a tiled descriptor at .*, found 1|TILED mode does not support offsets}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] offsets = [%o] %buf, %bar, %p : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// Coordinates are i32.  (A note of Triton's parser says where the value got its type.)

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#smem = #ttg.shared_memory
tt.func @wide_coordinate(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %i: i32, %j: i64) {
  // expected-error-re @+1 {{{{expected 'i32' as the type of coordinate 1 at .*, found 'i64'|'%j' expects different type than prior uses: 'i32' vs 'i64'}}}}
  ttng.async_tma_copy_local_to_global %x[%i, %j, %i] %buf : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

// The buffer holds the block: as many elements, of the same type, in the same layout, in memory that the
// TMA unit can swizzle; a load writes it.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#smem = #ttg.shared_memory
tt.func @smaller_buffer(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<1x8x64xf16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected a buffer of 1024 elements, as many as the block has at .*, found 512|descriptor block with 1024 elements}}}}
  ttng.async_tma_copy_local_to_global %x[%i, %i, %i] %buf : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#smem = #ttg.shared_memory
tt.func @other_elements(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xi16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected a buffer of 'f16', the elements of the block at .*, found 'i16'|element type 'f16' and tensor element type 'i16'}}}}
  ttng.async_tma_reduce add, %x[%i, %i, %i] %buf : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<2x8x64xi16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#smem = #ttg.shared_memory
tt.func @no_encoding(%x: !tt.tensordesc<2x8x64xf16>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %i: i32) {
  // expected-error-re @+1 {{{{expected a descriptor with an encoding of '#ttg.nvmma_shared', as the buffer has, at .*, found none|TMA descriptor layout must match shared layout}}}}
  ttng.async_tma_copy_local_to_global %x[%i, %i, %i] %buf : !tt.tensordesc<2x8x64xf16>, !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [2, 1, 0]}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @rows(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // expected-error-re @+1 {{{{expected a buffer with an encoding of '#ttg.nvmma_shared' at .*, found '#ttg.swizzled_shared|TMA descriptor must have NVMMA shared layout}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] %buf, %bar, %p : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// -----

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @immutable(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem>, %bar: !ttg.memdesc<1xi64, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // expected-error-re @+1 {{{{expected a mutable buffer at .*, found one that cannot be written|cannot store into immutable memory}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] %buf, %bar, %p : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi64, #bar, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem>
  tt.return
}

// -----

// What counts the bytes of a load is an mbarrier, of 64 bits.

#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, rank = 3}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
tt.func @barrier(%x: !tt.tensordesc<2x8x64xf16, #shared>, %buf: !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>, %bar: !ttg.memdesc<1xi32, #bar, #smem, mutable>, %p: i1, %i: i32) {
  // expected-error-re @+1 {{{{expected a memory descriptor of 1xi64 as the mbarrier at .*, found '!ttg.memdesc<1xi32,|barrier allocation must be a descriptor of [1N]xi64 type}}}}
  ttng.async_tma_copy_global_to_local %x[%i, %i, %i] %buf, %bar, %p : !tt.tensordesc<2x8x64xf16, #shared>, !ttg.memdesc<1xi32, #bar, #smem, mutable> -> !ttg.memdesc<2x8x64xf16, #shared, #smem, mutable>
  tt.return
}

// Each operation that reads or writes a buffer says where the buffer may lie: its first address and
// the bytes up to its last element. The module stays as it is.

// RUN: triton-opt %s -test-print-buffer-region -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -test-print-buffer-region -split-input-file 2>/dev/null | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory

// CHECK-LABEL: tt.func public @stages
// CHECK-NEXT: %ring = ttg.local_alloc {allocation.offset = 256 : i32} : () -> !ttg.memdesc<3x8x16xi32, #s, #smem, mutable>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func public @stages(%i: i32, %x: tensor<8x16xi32>) {
    %ring = ttg.local_alloc {allocation.offset = 256 : i32} : () -> !ttg.memdesc<3x8x16xi32, #s, #smem, mutable>
    %two = arith.constant 2 : i32
    // A stage is 8 * 16 * 4 = 512 bytes; the last one starts at 256 + 2 * 512.
    %last = ttg.memdesc_index %ring[%two] : !ttg.memdesc<3x8x16xi32, #s, #smem, mutable> -> !ttg.memdesc<8x16xi32, #s, #smem, mutable>
    // expected-remark @below {{Buffers: [1280, 512]}}
    ttg.local_store %x, %last : tensor<8x16xi32> -> !ttg.memdesc<8x16xi32, #s, #smem, mutable>
    %some = ttg.memdesc_index %ring[%i] : !ttg.memdesc<3x8x16xi32, #s, #smem, mutable> -> !ttg.memdesc<8x16xi32, #s, #smem, mutable>
    // expected-remark @below {{Buffers: [256, 512], [768, 512], [1280, 512]}}
    %y = ttg.local_load %some : !ttg.memdesc<8x16xi32, #s, #smem, mutable> -> tensor<8x16xi32>
    // Columns 8 to 15 of rows 4 to 7: 4 * 64 + 8 * 4 bytes behind the start of a stage. From the
    // first of these elements to the last one there are 3 rows of 64 bytes and 32 bytes.
    %part = ttg.memdesc_subslice %last[4, 8] : !ttg.memdesc<8x16xi32, #s, #smem, mutable> -> !ttg.memdesc<4x8xi32, #s, #smem, mutable, 8x16>
    // expected-remark @below {{Buffers: [1568, 224]}}
    %z = ttg.local_load %part : !ttg.memdesc<4x8xi32, #s, #smem, mutable, 8x16> -> tensor<4x8xi32>
    tt.return
  }

  // A buffer from outside may be anywhere; what frees a buffer does not access it.
  tt.func public @outside(%o: !ttg.memdesc<8x16xi32, #s, #smem, mutable>) {
    // expected-remark @below {{Buffers: unknown}}
    %y = ttg.local_load %o : !ttg.memdesc<8x16xi32, #s, #smem, mutable> -> tensor<8x16xi32>
    ttg.local_dealloc %o : !ttg.memdesc<8x16xi32, #s, #smem, mutable>
    tt.return
  }

  // expected-remark @below {{All Shared Regions: [256, 512], [768, 512], [1280, 512], [1568, 224]}}
  tt.func private @all() attributes {test.print_all_used_regions} {
    tt.return
  }
}

// -----

#b = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#t = #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>
#smem = #ttg.shared_memory

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100"} {
  // Regions of mbarriers count as shared memory and once more as barriers; those of tensor memory
  // are columns, with the row in the upper 16 bits of the address.
  tt.func public @kinds(%x: tensor<128x64xf32>) {
    %true = arith.constant true
    %bar = ttg.local_alloc {allocation.offset = 64 : i32} : () -> !ttg.memdesc<1xi64, #b, #smem, mutable>
    // expected-remark @below {{Buffers: [64, 8]}}
    ttng.init_barrier %bar, 1 : !ttg.memdesc<1xi64, #b, #smem, mutable>
    %m = ttng.tmem_alloc {tensor_memory_col_offset = 32 : i32, tensor_memory_row_offset = 16 : i32} : () -> !ttg.memdesc<128x64xf32, #t, #ttng.tensor_memory, mutable>
    // 16 * 65536 + 32.
    // expected-remark @below {{Buffers: [1048608, 64]}}
    ttng.tmem_store %x, %m, %true : tensor<128x64xf32> -> !ttg.memdesc<128x64xf32, #t, #ttng.tensor_memory, mutable>
    tt.return
  }

  // expected-remark @below {{All Shared Regions: [64, 8]}}
  // expected-remark @below {{All Tensor Regions: [1048608, 64]}}
  // expected-remark @below {{All Barrier Regions: [64, 8]}}
  tt.func private @all() attributes {test.print_all_used_regions} {
    tt.return
  }
}

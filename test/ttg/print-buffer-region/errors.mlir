// Buffers that are not placed, and malformed names and lists.

// RUN: triton-opt %s --host=none -test-print-buffer-region -test-buffer-region-alias -split-input-file -verify-diagnostics=only-expected -o /dev/null

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

tt.func @not_placed() {
  // expected-error @below {{expected 'allocation.offset': allocate the module's shared memory first}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<16xi32, #s, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<16xi32, #s, #smem, mutable> -> tensor<16xi32>
  tt.return
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

tt.func @two_offsets() {
  // expected-error @below {{expected 1 offset, found 2}}
  %a = ttg.local_alloc {allocation.offset = [0 : i32, 64 : i32]} : () -> !ttg.memdesc<16xi32, #s, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<16xi32, #s, #smem, mutable> -> tensor<16xi32>
  tt.return
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

tt.func @no_number() {
  // expected-error @below {{expected a number of bytes, or one for each partition, as 'allocation.offset', found -16 : i32}}
  %a = ttg.local_alloc {allocation.offset = -16 : i32} : () -> !ttg.memdesc<16xi32, #s, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<16xi32, #s, #smem, mutable> -> tensor<16xi32>
  tt.return
}

// -----

#t = #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>

tt.func @no_column() {
  // expected-error @below {{expected 'tensor_memory_col_offset': the module's tensor memory has to be allocated}}
  %m = ttng.tmem_alloc {tensor_memory_row_offset = 0 : i32} : () -> !ttg.memdesc<128x64xf32, #t, #ttng.tensor_memory, mutable>
  %x = ttng.tmem_load %m : !ttg.memdesc<128x64xf32, #t, #ttng.tensor_memory, mutable> -> tensor<128x64xf32>
  tt.return
}

// -----

// expected-error @below {{expected a memory descriptor or 'test.region_addresses' beside 'test.region_name'}}
tt.func private @nothing() attributes {test.region_name = "nothing"}

// -----

// expected-error @below {{expected a string as 'test.region_name', found 4 : i32}}
tt.func private @no_name() attributes {test.region_name = 4 : i32, test.region_addresses = array<i32: 0>}

// -----

// expected-error @below {{expected a list of integers from 0 to 1048575 as 'test.region_addresses', found array<i32: 0, -1>}}
tt.func private @negative() attributes {test.region_name = "negative", test.region_addresses = array<i32: 0, -1>}

// -----

// expected-error @below {{expected a list of integers from 0 to 1048575 as 'test.region_addresses', found array<i32: 0, 2147483647>}}
tt.func private @far() attributes {test.region_name = "far", test.region_addresses = array<i32: 0, 2147483647>}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

tt.func @behind_every_memory() {
  // expected-error @below {{expected offsets below 1048576 as 'allocation.offset', found 2147483647}}
  %a = ttg.local_alloc {allocation.offset = 2147483647 : i32} : () -> !ttg.memdesc<16xi32, #s, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<16xi32, #s, #smem, mutable> -> tensor<16xi32>
  tt.return
}

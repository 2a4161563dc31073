// A malformed operation is an error at its place.

// RUN: triton-opt %s --host=none -test-print-alignment -split-input-file -verify-diagnostics=only-expected -o /dev/null

tt.func @no_axis(%x: tensor<8xi32>) {
  // expected-error @below {{expected the integer attribute 'axis' in 'tt.expand_dims'}}
  %y = tt.expand_dims %x : tensor<8xi32> -> tensor<8x1xi32>
  tt.return
}

// -----

tt.func @no_end() {
  // expected-error @below {{expected the integer attribute 'end' in 'tt.make_range'}}
  %y = tt.make_range {start = 0 : i32} : tensor<8xi32>
  tt.return
}

// -----

tt.func @no_such_dimension(%x: tensor<8x4xi32>) {
  // expected-error @below {{expected an order of 2 dimensions}}
  %y = tt.trans %x {order = array<i32: 2, 0>} : tensor<8x4xi32> -> tensor<4x8xi32>
  tt.return
}

// -----

tt.func @dynamic(%x: i32) {
  // expected-error @below {{expected a static shape, in 'tensor<?x4xi32>'}}
  %y = builtin.unrealized_conversion_cast %x : i32 to tensor<?x4xi32>
  tt.return
}

// -----

tt.func @one_operand(%x: i32) {
  // expected-error @below {{'arith.muli' takes 2 operands, and the text names 1}}
  %y = arith.muli %x : i32
  tt.return
}

// -----

tt.func @no_predicate(%x: i32) {
  %max = arith.constant 2147483647 : i32
  // expected-error @below {{expected a predicate in 'arith.cmpi'}}
  %y = arith.cmpi , %x, %max : i32
  tt.return
}

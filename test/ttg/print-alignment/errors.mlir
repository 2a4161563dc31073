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

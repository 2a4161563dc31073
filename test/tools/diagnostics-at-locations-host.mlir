// RUN: triton-opt %s -split-input-file -verify-diagnostics --host=always
// REQUIRES: triton

// Triton's verifier reports where an operation comes from; a location in another file is unknown.
// expected-error @unknown {{op has 2 operands, but enclosing function (@f) returns 1}}
tt.func @f(%x: i32) -> i32 {
  tt.return %x, %x : i32, i32 loc("kernel.py":7:3)
}

// -----

tt.func @f(%x: i32) -> i32 {
  // expected-error @+1 {{op has 2 operands, but enclosing function (@f) returns 1}}
  tt.return %x, %x : i32, i32
}

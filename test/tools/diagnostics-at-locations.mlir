// RUN: triton-opt %s -verify-diagnostics --host=always
// RUN: triton-opt %s -verify-diagnostics --host=none
// REQUIRES: triton

// What is wrong with the text stands in the text, whatever location is behind it.
tt.func @text(%x: i32) -> i32 {
  // expected-error @+1 {{use of undeclared SSA value}}
  tt.return %y : i32 loc("kernel.py":7:3)
}

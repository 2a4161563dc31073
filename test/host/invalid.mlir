// REQUIRES: triton
// RUN: triton-opt %s -split-input-file -verify-diagnostics

// Triton's parser and verifier report at the user's line.

tt.func @undefined(%x: i32) {
  // expected-error @+1 {{use of undeclared SSA value name}}
  %y = arith.addi %x, %z : i32
  tt.return
}

// -----

tt.func @callee(%x: i32) -> i32 {
  tt.return %x : i32
}

tt.func @operands(%x: f32) {
  // expected-error @below {{operand type mismatch}}
  %y = tt.call @callee(%x) : (f32) -> i32
  tt.return
}

// -----

tt.func @range() {
  // expected-error @+1 {{'tt.make_range' op}}
  %r = tt.make_range {end = 0 : i32, start = 64 : i32} : tensor<64xi32>
  tt.return
}

// -----

// expected-error-re @+1 {{{{.*}}unregistered dialect{{.*}}}}
"test.op"() : () -> ()

// REQUIRES: triton
// RUN: triton-opt %s -split-input-file -verify-diagnostics

// Errors while the module is read have their notes.  Triton 3.6 has no way to tell them: there the
// expected ones are remarked upon.

// expected-note @+1 {{prior use here}}
tt.func @f(%x: tensor<32xf32>, %y: tensor<33xf32>) {
  // expected-error @+1 {{expects different type than prior uses}}
  %a = tt.join %x, %y : tensor<32xf32> -> tensor<32x2xf32>
  tt.return
}

// -----

tt.func @f(%x: i32) {
  // expected-note @+1 {{previously defined here}}
  %a = arith.addi %x, %x : i32
  // expected-error @+1 {{redefinition of SSA value '%a'}}
  %a = arith.addi %x, %x : i32
  tt.return
}

// REQUIRES: triton-3.7-or-newer
// RUN: triton-opt %s -allow-unregistered-dialect -canonicalize | FileCheck %s

// An operation of no dialect stays, and so does what it uses.

// CHECK:      tt.func @f(%arg0: i32) {
// CHECK-NEXT:   %0 = arith.addi %arg0, %arg0 : i32
// CHECK-NEXT:   "test.use"(%0) : (i32) -> ()
// CHECK-NEXT:   tt.return
tt.func @f(%x: i32) {
  %y = arith.addi %x, %x : i32
  %dead = arith.muli %x, %x : i32
  "test.use"(%y) : (i32) -> ()
  tt.return
}

// RUN: not triton-opt --host=none -split-input-file %s 2>&1 | FileCheck %s --strict-whitespace

// A module that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+3]]:47: error: expected '}' to match this '{', found the end{{$}}
// CHECK-NEXT:{{^}}module attributes {"ttg.num-warps" = 4 : i32} {{{$}}
// CHECK-NEXT:{{^}}                                              ^{{$}}
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func @kernel() {
    tt.return
  }

// -----

// An operand list that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+3]]:11: error: expected ')' to match this '(', found the end{{$}}
// CHECK-NEXT:{{^}}tt.call @f(%x{{$}}
// CHECK-NEXT:{{^}}          ^{{$}}
tt.call @f(%x

// -----

// A type that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:56: error: expected '}' to match this '{', found the end{{$}}
// CHECK-NEXT:{{^}}  %y = tt.splat %x : i32 -> tensor<128xi32, #ttg.slice<{dim = 0{{$}}
// CHECK-NEXT:{{^}}                                                       ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = tt.splat %x : i32 -> tensor<128xi32, #ttg.slice<{dim = 0

// -----

// The wrong bracket.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+5]]:21: error: expected ')', found ']'{{$}}
// CHECK-NEXT:{{^}}  %y = tt.call @f(%x] : (i32) -> i32{{$}}
// CHECK-NEXT:{{^}}                    ^{{$}}
// CHECK-NEXT:note: to match this '(' at {{.*}}brackets.mlir:[[#@LINE+2]]:18{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = tt.call @f(%x] : (i32) -> i32
  tt.return
}

// -----

// The wrong bracket in a type.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+5]]:64: error: expected '}', found ']'{{$}}
// CHECK-NEXT:{{^}}  %y = tt.splat %x : i32 -> tensor<128xi32, #ttg.slice<{dim = 0]>>{{$}}
// CHECK-NEXT:{{^}}                                                               ^{{$}}
// CHECK-NEXT:note: to match this '{' at {{.*}}brackets.mlir:[[#@LINE+2]]:56{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = tt.splat %x : i32 -> tensor<128xi32, #ttg.slice<{dim = 0]>>
  tt.return
}

// -----

// A bracket that closes nothing.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:25: error: unexpected ')' that closes nothing{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %x, %x) : i32{{$}}
// CHECK-NEXT:{{^}}                        ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x) : i32
  tt.return
}

// -----

// An angle bracket that closes nothing.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:31: error: unexpected '>' that closes nothing{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %x, %x : i32>{{$}}
// CHECK-NEXT:{{^}}                              ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32>
  tt.return
}

// -----

// A brace too many.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+7]]:1: error: expected an operation, found '}'{{$}}
// CHECK-NEXT:{{^}}}{{$}}
// CHECK-NEXT:{{^}}^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32
  tt.return
}
}

// -----

// A string that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:12: error: expected '"' at the end of this string on the same line{{$}}
// CHECK-NEXT:{{^}}  tt.print "x: {hex = false} : %x : i32{{$}}
// CHECK-NEXT:{{^}}           ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  tt.print "x: {hex = false} : %x : i32
  tt.return
}

// -----

// A location that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:35: error: expected ')' to match this '(', found the end{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %x, %x : i32 loc("a.py":1:2{{$}}
// CHECK-NEXT:{{^}}                                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32 loc("a.py":1:2

// -----

// An attribute dictionary that is not closed.
// CHECK:{{^.*}}brackets.mlir:[[#@LINE+4]]:19: error: expected '}' to match this '{', found the end{{$}}
// CHECK-NEXT:{{^}}  %y = tt.load %p {isVolatile = true : !tt.ptr<i32>{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = tt.load %p {isVolatile = true : !tt.ptr<i32>

// RUN: not triton-opt --host=none -split-input-file %s 2>&1 | FileCheck %s --strict-whitespace

// No equals sign.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found '%y' that is not followed by '='{{$}}
// CHECK-NEXT:{{^}}  %y arith.addi %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y arith.addi %x, %x : i32
  tt.return
}

// -----

// Nothing behind the equals sign.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+5]]:1: error: expected an operation, found '}'{{$}}
// CHECK-NEXT:{{^}}}{{$}}
// CHECK-NEXT:{{^}}^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y =
}

// -----

// Two equals signs.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:8: error: expected the name of an operation, found '%z'{{$}}
// CHECK-NEXT:{{^}}  %y = %z = arith.addi %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}       ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = %z = arith.addi %x, %x : i32
  tt.return
}

// -----

// A word without a dialect.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found 'nonsense'{{$}}
// CHECK-NEXT:{{^}}  nonsense{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  nonsense
  tt.return
}

// -----

// A number.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found '4'{{$}}
// CHECK-NEXT:{{^}}  42{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  42
  tt.return
}

// -----

// A type where an operation is expected.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found '!'{{$}}
// CHECK-NEXT:{{^}}  !tt.ptr<i32>{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  !tt.ptr<i32>
  tt.return
}

// -----

// An alias in a function.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found '#'{{$}}
// CHECK-NEXT:{{^}}  #blocked = 1{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  #blocked = 1
  tt.return
}

// -----

// Not at the top level either.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+3]]:1: error: expected an operation, found 'nonsense'{{$}}
// CHECK-NEXT:{{^}}nonsense{{$}}
// CHECK-NEXT:{{^}}^{{$}}
nonsense

// -----

// A colon too early.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:3: error: expected an operation, found ':'{{$}}
// CHECK-NEXT:{{^}}  : i32{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  : i32
  tt.return
}

// -----

// Two operations on a line.
// CHECK:{{^.*}}operations.mlir:[[#@LINE+4]]:32: error: expected one operation on a line, found another one{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %x, %x : i32 "t.b"(%y) : (i32) -> (){{$}}
// CHECK-NEXT:{{^}}                               ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32 "t.b"(%y) : (i32) -> ()
  tt.return
}

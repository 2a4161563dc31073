// RUN: not triton-opt --host=none -split-input-file %s 2>&1 | FileCheck %s --strict-whitespace

// A branch to nowhere.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+4]]:9: error: reference to an undefined block '^bb7'{{$}}
// CHECK-NEXT:{{^}}  cf.br ^bb7{{$}}
// CHECK-NEXT:{{^}}        ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb7
}

// -----

// A block of another region.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+6]]:11: error: reference to an undefined block '^bb1'{{$}}
// CHECK-NEXT:{{^}}    cf.br ^bb1{{$}}
// CHECK-NEXT:{{^}}          ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %c = arith.cmpi eq, %x, %x : i32
  scf.if %c {
    cf.br ^bb1
  }
  cf.br ^bb1
^bb1:
  tt.return
}

// -----

// Two blocks of one name.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+7]]:1: error: redefinition of block '^bb1'{{$}}
// CHECK-NEXT:{{^}}^bb1:{{$}}
// CHECK-NEXT:{{^}}^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb1
^bb1:
  cf.br ^bb1
^bb1:
  tt.return
}

// -----

// A label without a colon.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+6]]:3: error: expected ':' behind block '^bb1', found 't'{{$}}
// CHECK-NEXT:{{^}}  tt.return{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb1
^bb1
  tt.return
}

// -----

// A block argument without a type.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+5]]:8: error: expected ':' and a type behind '%y'{{$}}
// CHECK-NEXT:{{^}}^bb1(%y):{{$}}
// CHECK-NEXT:{{^}}       ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb1(%x : i32)
^bb1(%y):
  tt.return
}

// -----

// Block arguments without a comma.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+5]]:14: error: expected ',' or ')', found '%'{{$}}
// CHECK-NEXT:{{^}}^bb1(%y: i32 %z: i32):{{$}}
// CHECK-NEXT:{{^}}             ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb1(%x, %x : i32, i32)
^bb1(%y: i32 %z: i32):
  tt.return
}

// -----

// A block argument that is no name.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+5]]:6: error: expected the name of a block argument{{$}}
// CHECK-NEXT:{{^}}^bb1(1):{{$}}
// CHECK-NEXT:{{^}}     ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^bb1(%x : i32)
^bb1(1):
  tt.return
}

// -----

// No name behind the sign.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+4]]:9: error: expected the name of a block behind '^'{{$}}
// CHECK-NEXT:{{^}}  cf.br ^{{$}}
// CHECK-NEXT:{{^}}        ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  cf.br ^
}

// -----

// A label outside of a region.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+3]]:1: error: expected an operation, found '^'{{$}}
// CHECK-NEXT:{{^}}^bb0:{{$}}
// CHECK-NEXT:{{^}}^{{$}}
^bb0:

// -----

// An argument without its type.
// CHECK:{{^.*}}blocks.mlir:[[#@LINE+3]]:21: error: expected a type, found ')'{{$}}
// CHECK-NEXT:{{^}}tt.func @kernel(%x: ) {{{$}}
// CHECK-NEXT:{{^}}                    ^{{$}}
tt.func @kernel(%x: ) {
  tt.return
}

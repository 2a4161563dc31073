// RUN: not triton-opt --host=none -split-input-file %s 2>&1 | FileCheck %s --strict-whitespace

// An operand that nothing defines.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:23: error: use of undeclared SSA value '%z'{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %x, %z : i32{{$}}
// CHECK-NEXT:{{^}}                      ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %z : i32
  tt.return
}

// -----

// Defined twice.
// CHECK:{{^.*}}values.mlir:[[#@LINE+5]]:3: error: redefinition of SSA value '%y'{{$}}
// CHECK-NEXT:{{^}}  %y = arith.muli %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32
  %y = arith.muli %x, %x : i32
  tt.return
}

// -----

// Named like an argument.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:3: error: redefinition of SSA value '%x'{{$}}
// CHECK-NEXT:{{^}}  %x = arith.constant 1 : i32{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %x = arith.constant 1 : i32
  tt.return
}

// -----

// Two arguments of one name.
// CHECK:{{^.*}}values.mlir:[[#@LINE+3]]:26: error: redefinition of SSA value '%x'{{$}}
// CHECK-NEXT:{{^}}tt.func @kernel(%x: i32, %x: i32) {{{$}}
// CHECK-NEXT:{{^}}                         ^{{$}}
tt.func @kernel(%x: i32, %x: i32) {
  tt.return
}

// -----

// Used behind the region that defines it.
// CHECK:{{^.*}}values.mlir:[[#@LINE+8]]:19: error: use of undeclared SSA value '%y'{{$}}
// CHECK-NEXT:{{^}}  %z = arith.addi %y, %x : i32{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %c = arith.cmpi eq, %x, %x : i32
  scf.if %c {
    %y = arith.muli %x, %x : i32
  }
  %z = arith.addi %y, %x : i32
  tt.return
}

// -----

// A function does not see another one's values.
// CHECK:{{^.*}}values.mlir:[[#@LINE+8]]:32: error: use of undeclared SSA value '%y'{{$}}
// CHECK-NEXT:{{^}}  tt.print "y" {hex = false} : %y : i32{{$}}
// CHECK-NEXT:{{^}}                               ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %x, %x : i32
  tt.return
}
tt.func @other() {
  tt.print "y" {hex = false} : %y : i32
  tt.return
}

// -----

// A partition sees only its arguments.
// CHECK:{{^.*}}values.mlir:[[#@LINE+9]]:21: error: use of undeclared SSA value '%x'{{$}}
// CHECK-NEXT:{{^}}    %y = arith.addi %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}                    ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  ttg.warp_specialize()
  default {
    ttg.warp_yield
  }
  partition0() num_warps(4) {
    %y = arith.addi %x, %x : i32
    ttg.warp_return
  } : () -> ()
  tt.return
}

// -----

// A loop's own counter is gone behind it.
// CHECK:{{^.*}}values.mlir:[[#@LINE+7]]:19: error: use of undeclared SSA value '%i'{{$}}
// CHECK-NEXT:{{^}}  %z = arith.addi %i, %x : i32{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  scf.for %i = %x to %x step %x : i32 {
    %y = arith.addi %i, %x : i32
  }
  %z = arith.addi %i, %x : i32
  tt.return
}

// -----

// Not that many results.
// CHECK:{{^.*}}values.mlir:[[#@LINE+5]]:19: error: '%y' has no result number 2{{$}}
// CHECK-NEXT:{{^}}  %z = arith.addi %y#2, %x : i32{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y:2 = "tt.split"(%x) : (i32) -> (i32, i32)
  %z = arith.addi %y#2, %x : i32
  tt.return
}

// -----

// A number behind a single result.
// CHECK:{{^.*}}values.mlir:[[#@LINE+5]]:19: error: '%y' has no result number 1{{$}}
// CHECK-NEXT:{{^}}  %z = arith.addi %y#1, %x : i32{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.muli %x, %x : i32
  %z = arith.addi %y#1, %x : i32
  tt.return
}

// -----

// A group of no results.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:3: error: expected at least one result in a group, found 0{{$}}
// CHECK-NEXT:{{^}}  %y:0 = arith.muli %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y:0 = arith.muli %x, %x : i32
  tt.return
}

// -----

// More results than an operation can have.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:6: error: expected at most 2000 results, found 99999{{$}}
// CHECK-NEXT:{{^}}  %y:99999 = arith.muli %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}     ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y:99999 = arith.muli %x, %x : i32
  tt.return
}

// -----

// No name behind the sign.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:19: error: expected the name of an SSA value behind '%'{{$}}
// CHECK-NEXT:{{^}}  %y = arith.addi %, %x : i32{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y = arith.addi %, %x : i32
  tt.return
}

// -----

// A result that is no name.
// CHECK:{{^.*}}values.mlir:[[#@LINE+4]]:7: error: expected the name of a result{{$}}
// CHECK-NEXT:{{^}}  %y, 1 = arith.addi %x, %x : i32{{$}}
// CHECK-NEXT:{{^}}      ^{{$}}
tt.func @kernel(%x: i32, %p: !tt.ptr<i32>) {
  %y, 1 = arith.addi %x, %x : i32
  tt.return
}

// RUN: triton-opt --host=none --mlir-print-debuginfo --mlir-pretty-debuginfo %s | FileCheck %s --match-full-lines --strict-whitespace
// RUN: triton-opt --host=none --mlir-print-debuginfo --mlir-pretty-debuginfo --mlir-print-local-scope %s | FileCheck %s --check-prefix=LOCAL --match-full-lines --strict-whitespace
// RUN: triton-opt --host=none --mlir-pretty-debuginfo %s | FileCheck %s --check-prefix=NONE --implicit-check-not=kernel

// Locations for reading: without loc(...) and quotes, a call site in two lines unless a name
// stands at a place. Inside of a location an alias stays, unless aliases are written out. A kind
// that is not known stays as it is.

//      CHECK:tt.func @f(%x: i32 "x"(#loc1)) {
// CHECK-NEXT:  %a = arith.addi %x, %x : i32 kernel.py:3:7
// CHECK-NEXT:  %b = arith.addi %x, %x : i32 kernel.py:3:7 to 4:9
// CHECK-NEXT:  %c = arith.addi %x, %x : i32 "sum" at kernel.py:5:1
// CHECK-NEXT:  %d = arith.addi %x, %x : i32 #loc1
// CHECK-NEXT: at main.py:9:2
// CHECK-NEXT: at [unknown]
// CHECK-NEXT:  %e = arith.addi %x, %x : i32 <"fold">["x", kernel.py:1:2]
// CHECK-NEXT:  %s = tt.opaque "loc(#loc1)" : i32 loc(other(#loc1))
// CHECK-NEXT:  tt.return [unknown]
// CHECK-NEXT:} "f"
//      CHECK:#loc1 = kernel.py:3:7

//      LOCAL:tt.func @f(%x: i32 "x"(kernel.py:3:7)) {
//      LOCAL:  %d = arith.addi %x, %x : i32 kernel.py:3:7
// LOCAL-NEXT: at main.py:9:2

// Without --mlir-print-debuginfo there are none.
// NONE: tt.func @f(%x: i32) {
tt.func @f(%x: i32 loc("x"(#loc1))) {
  %a = arith.addi %x, %x : i32 loc(#loc1)
  %b = arith.addi %x, %x : i32 loc("kernel.py":3:7 to 4:9)
  %c = arith.addi %x, %x : i32 loc(callsite("sum" at "kernel.py":5:1))
  %d = arith.addi %x, %x : i32 loc(callsite(#loc1 at callsite("main.py":9:2 at unknown)))
  %e = arith.addi %x, %x : i32 loc(fused<"fold">["x", "kernel.py":1:2])
  %s = tt.opaque "loc(#loc1)" : i32 loc(other(#loc1))
  tt.return loc(unknown)
} loc("f"(unknown))
#loc1 = loc("kernel.py":3:7)

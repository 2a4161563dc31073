// REQUIRES: triton
// RUN: triton-opt %s --mlir-use-nameloc-as-prefix | FileCheck %s --check-prefix=NAMES
// RUN: triton-opt %s --mlir-use-nameloc-as-prefix --mlir-print-debuginfo -cse | FileCheck %s --check-prefix=BOTH
// RUN: triton-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=LOCATIONS
// RUN: not triton-opt %s --mlir-use-nameloc-as-prefix --host=none 2>&1 | FileCheck %s --check-prefix=NONE

// Names stand in locations; whether values have them is asked for apart from whether locations are
// printed.  A second value of a name gets a number.

// NAMES-NOT: loc(
// NAMES:     %row = arith.addi
// NAMES:     %row_0 = arith.muli %row, %row
// NAMES:     %0 = arith.subi %row_0, %row
// NAMES-NOT: loc(

// BOTH:      %row = arith.addi {{.*}} loc(
// BOTH:      loc("row"(

// LOCATIONS: %0 = arith.addi %arg0, %arg0 : i32 loc(
// LOCATIONS: %1 = arith.muli %0, %0 : i32 loc(
// LOCATIONS: loc("row"(

// NONE: error: '--mlir-use-nameloc-as-prefix' is for Triton's printer, which '--host=none' leaves out
tt.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32 loc("row"("k.py":1:2))
  %b = arith.muli %a, %a : i32 loc("row"("k.py":2:2))
  %c = arith.subi %b, %a : i32 loc("k.py":3:2)
  tt.return %c : i32
}

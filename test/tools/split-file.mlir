// Parts of a file, split as upstream's tests are: cat puts a common one in front of another.

// RUN: split-file %s %t
// RUN: cat %t/aliases.mlir %t/kernels/waits.mlir > %t/joined.mlir
// RUN: triton-opt --host=none %t/joined.mlir | FileCheck %t/kernels/waits.mlir
// RUN: not triton-opt --host=none %t/broken.mlir 2>&1 | FileCheck %t/broken.mlir --check-prefix=BARE
// RUN: split-file --leading-lines %s %t
// RUN: not triton-opt --host=none %t/broken.mlir 2>&1 | FileCheck %t/broken.mlir --check-prefix=LINES
// RUN: not split-file %t/aliases.mlir %t.none 2>&1 | FileCheck %t/broken.mlir --check-prefix=NONE

//--- aliases.mlir
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
//--- kernels/waits.mlir
// CHECK: #[[SHARED:.*]] = #ttg.swizzled_shared
// CHECK: tt.func @waits(%x: !ttg.memdesc<8xf32, #[[SHARED]], #ttg.shared_memory>)
tt.func @waits(%x: !ttg.memdesc<8xf32, #shared, #ttg.shared_memory>) {
  tt.return
}
//--- broken.mlir
// The return is in line 3 of the part, and in line 22 of this file.
tt.func @broken() -> i32 {
  tt.return %nowhere : i32
}
// BARE: broken.mlir:3:13: error: use of undeclared SSA value '%nowhere'
// LINES: broken.mlir:22:13: error: use of undeclared SSA value '%nowhere'
// NONE: split-file: error: {{.*}}aliases.mlir: no part separator was found

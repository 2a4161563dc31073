// RUN: triton-opt --host=none %s | FileCheck %s --implicit-check-not=loc
// RUN: triton-opt --host=none --mlir-print-debuginfo %s | FileCheck %s --check-prefix=DEBUG
// RUN: triton-opt --host=none --mlir-print-debuginfo --mlir-print-local-scope %s | FileCheck %s --check-prefix=LOCAL --implicit-check-not='#'

// Locations are printed on demand, and aliases of them and of encodings written out.

// CHECK:      #shared = #ttg.swizzled_shared
// CHECK:      tt.func @f(%x: i32) {
// CHECK-NEXT:   %m = ttg.local_{{al}}{{lo}}c  : () -> !ttg.memdesc<8xi32, #shared, #ttg.shared_memory, mutable>
// CHECK-NEXT:   tt.return

// DEBUG:      tt.func @f(%x: i32 loc("x"(#loc1))) {
// DEBUG:      mutable> loc(#loc1)
// DEBUG:      #loc1 = loc("kernel.py":3:7)

// LOCAL-NOT:  loc1
// LOCAL:      tt.func @f(%x: i32 loc("x"("kernel.py":3:7))) {
// LOCAL:      memdesc<8xi32, {{.}}ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>, {{.}}ttg.shared_memory, mutable> loc("kernel.py":3:7)
// LOCAL-NOT:  loc1
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
tt.func @f(%x: i32 loc("x"(#loc1))) {
  %m = ttg.local_alloc  : () -> !ttg.memdesc<8xi32, #shared, #ttg.shared_memory, mutable> loc(#loc1)
  tt.return loc(unknown)
}
#loc1 = loc("kernel.py":3:7)

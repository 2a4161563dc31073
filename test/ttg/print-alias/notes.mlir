// A descriptor that may name memory from outside of its function has a note that says so, tensor
// memory has no remarks, and a malformed operation is an error at its place.

// RUN: not triton-opt %s --host=none -test-print-alias -split-input-file -o /dev/null 2>&1 | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
#t = #ttng.tensor_memory_encoding<blockM = 128, blockN = 128, colStride = 1>

// CHECK: notes.mlir:[[@LINE+10]]:3: remark: %0 -> %0
// CHECK-NOT: note:
// CHECK: notes.mlir:[[@LINE+9]]:3: remark: %1 -> %0
// CHECK-NEXT: %b = arith.select
// CHECK-NEXT: ^
// CHECK-NEXT: note: it may refer to memory from outside as well
// CHECK-NOT: remark
// CHECK: notes.mlir:[[@LINE+11]]:3: error: 'scf.for' takes at least 3 operands, and the text names 1
tt.func public @f(%c: i1, %o: !ttg.memdesc<64xi32, #s, #smem, mutable>) {
  %m = ttng.tmem_alloc : () -> !ttg.memdesc<128x128xf32, #t, #ttng.tensor_memory, mutable>
  %a = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #s, #smem, mutable>
  %b = arith.select %c, %a, %o : !ttg.memdesc<64xi32, #s, #smem, mutable>
  tt.return
}

// -----

tt.func @malformed(%n: index) {
  "scf.for"(%n) ({
  ^bb0(%i: index):
    "scf.yield"() : () -> ()
  }) : (index) -> ()
  tt.return
}

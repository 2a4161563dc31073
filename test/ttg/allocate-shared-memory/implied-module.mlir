// A file without a module gets one, as mlir-opt prints it, because the sum is its attribute.

// RUN: triton-opt %s --host=none --allocate-shared-memory | FileCheck %s
// RUN: triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx950 | FileCheck %s
// RUN: triton-opt %s --pass-provider=host --allocate-shared-memory | FileCheck %s
// RUN: triton-opt - --allocate-shared-memory < /dev/null | FileCheck %s --check-prefix=EMPTY

// CHECK: {{^}}module attributes {ttg.shared = 2048 : i32} {
// CHECK: tt.func public @f()
// CHECK: allocation.offset = 0 : i32
// CHECK: {{^}}}
// EMPTY: module attributes {ttg.shared = 0 : i32} {
// EMPTY-NEXT: }
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
tt.func public @f() {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<32x32xf16, #s, #smem, mutable>
  tt.return
}

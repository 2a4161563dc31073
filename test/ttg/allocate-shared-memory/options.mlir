// Options that make no sense are refused, and not taken for others.

// RUN: not triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx1520 2>&1 | FileCheck %s --check-prefix=C0
// C0: error: pass 'allocate-amdgpu-shared-memory': {{.*}}expected an AMD GPU as 'arch', found 'gfx1520'; known are gfx90a, gfx942, gfx950, gfx1250, gfx1251
// RUN: not triton-opt %s --allocate-amdgpu-shared-memory=arch=GFX1250 2>&1 | FileCheck %s --check-prefix=C1
// C1: error: pass 'allocate-amdgpu-shared-memory': {{.*}}found 'GFX1250'
// RUN: not triton-opt %s --triton-ext-align-partitioned-shared=arch=sm_90 2>&1 | FileCheck %s --check-prefix=C2
// C2: error: pass 'triton-ext-align-partitioned-shared': {{.*}}found 'sm_90'
// RUN: not triton-opt %s --allocate-shared-memory-nv=compute-capability=7777 2>&1 | FileCheck %s --check-prefix=C3
// C3: error: pass 'allocate-shared-memory-nv': {{.*}}expected a compute capability as 'compute-capability', such as 90, found 7777
// RUN: not triton-opt %s --allocate-shared-memory-nv=capacity=-1 2>&1 | FileCheck %s --check-prefix=C4
// C4: error: pass 'allocate-shared-memory-nv': {{.*}}expected a number of bytes as 'capacity', or 0, found -1
// RUN: not triton-opt %s --allocate-shared-memory=capacity=-1 2>&1 | FileCheck %s --check-prefix=C5
// C5: error: pass 'allocate-shared-memory': {{.*}}expected a number of bytes as 'capacity', or 0, found -1
// RUN: not triton-opt %s --test-print-allocation=partition-size=-5 2>&1 | FileCheck %s --check-prefix=C6
// C6: error: pass 'test-print-allocation': {{.*}}expected a power of two from 128 to 1073741824 as 'partition-size', or 0, found -5
// RUN: not triton-opt %s --test-print-allocation=partition-size=1000 2>&1 | FileCheck %s --check-prefix=C7
// C7: error: pass 'test-print-allocation': {{.*}}found 1000
// RUN: not triton-opt %s --test-print-allocation=partition-size=100000000000 2>&1 | FileCheck %s --check-prefix=C8
// C8: error: pass 'test-print-allocation': {{.*}}found 100000000000

// RUN: triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx1100 | FileCheck %s
// RUN: triton-opt %s --allocate-amdgpu-shared-memory=arch=gfx950-strict | FileCheck %s
// CHECK: ttg.shared = 0 : i32
module attributes {"ttg.num-warps" = 4 : i32} {
}

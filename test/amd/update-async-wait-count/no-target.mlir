// A module without a target: the option says which GPU it is for, or it is an error.

// RUN: triton-opt %s --host=none --tritonamdgpu-update-async-wait-count=gfx-arch=gfx1250 | FileCheck %s
// RUN: not triton-opt %s --host=none --tritonamdgpu-update-async-wait-count 2>&1 | FileCheck %s --check-prefix=ERROR
// ERROR: no-target.mlir:[[@LINE+2]]:1: error: expected 'ttg.target' such as "hip:gfx1250", found ''

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: @no_target
  tt.func public @no_target() {
    // CHECK: amdg.async_wait {{.*}}num_inst = 0
    %w = ttg.async_wait {num = 1 : i32}
    tt.return
  }
}

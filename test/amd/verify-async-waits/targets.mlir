// GPUs that are known to have no asynchronous copies are left alone, those not known with a warning.

// RUN: triton-opt %s -split-input-file --triton-ext-verify-async-waits --verify-diagnostics
// RUN: triton-opt %s -split-input-file --host=none --tritonamdgpu-update-async-wait-count --verify-diagnostics
// RUN: not triton-opt %s -split-input-file --triton-ext-verify-async-waits=gfx-arch=gfx125 2>&1 | FileCheck %s
// RUN: not triton-opt %s -split-input-file --host=none --tritonamdgpu-update-async-wait-count=gfx-arch=gfx125 2>&1 | FileCheck %s
// CHECK: expected a GPU with asynchronous copies to LDS (gfx942, gfx950, gfx1250, gfx1251), found 'gfx125'

module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1201"} {
  tt.func public @known_without() {
    %w = ttg.async_wait {num = 1 : i32}
    tt.return
  }
}

// -----

module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx90a"} {
  tt.func public @not_known() {
    // expected-warning @+1 {{the waits of this module are left alone: expected a GPU with asynchronous copies to LDS (gfx942, gfx950, gfx1250, gfx1251), found 'gfx90a'}}
    %w = ttg.async_wait {num = 1 : i32}
    tt.return
  }
}

// -----

module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx90a"} {
  tt.func public @nothing_asynchronous() {
    tt.return
  }
}

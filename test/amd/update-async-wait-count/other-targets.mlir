// GPUs without asynchronous copies to LDS, and those of another vendor: nothing changes.

// RUN: triton-opt %s -split-input-file --host=none --tritonamdgpu-update-async-wait-count | FileCheck %s

#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1201", "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: @rdna4
  tt.func public @rdna4() {
    // CHECK: ttg.async_wait {num = 1 : i32}
    %w = ttg.async_wait {num = 1 : i32}
    tt.return
  }
}

// -----

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  // CHECK-LABEL: @hopper
  tt.func public @hopper() {
    // CHECK: ttg.async_wait {num = 1 : i32}
    %w = ttg.async_wait {num = 1 : i32}
    tt.return
  }
}

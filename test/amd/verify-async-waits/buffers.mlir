// RUN: not triton-opt %s --triton-ext-verify-async-waits 2>&1 | FileCheck %s

// What the IR calls a buffer is told together with the variable, and where it was allocated.

#row = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#flat = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
#named = loc("rows"("kernel.py":5:3))

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%p: tensor<128x!tt.ptr<f32>, #row>) {
    %c0 = arith.constant 0 : i32
    %0 = ttg.local_alloc : () -> !ttg.memdesc<2x128xf32, #flat, #smem, mutable> loc(#named)
    %1 = ttg.local_alloc : () -> !ttg.memdesc<128xf32, #flat, #smem, mutable> loc("kernel.py":6:3)
    %2 = ttg.memdesc_index %0[%c0] : !ttg.memdesc<2x128xf32, #flat, #smem, mutable> -> !ttg.memdesc<128xf32, #flat, #smem, mutable>
    %3 = ttg.async_copy_global_to_local %p, %2 : tensor<128x!tt.ptr<f32>, #row> -> <128xf32, #flat, #smem, mutable>
    %4 = ttg.async_copy_global_to_local %p, %1 : tensor<128x!tt.ptr<f32>, #row> -> <128xf32, #flat, #smem, mutable>
    // CHECK: kernel.py:8:3: error: unsafe read of LDS
    // CHECK: note: %{{.*}} is part of 'rows', allocated at kernel.py:5:3
    %5 = ttg.local_load %2 : !ttg.memdesc<128xf32, #flat, #smem, mutable> -> tensor<128xf32, #row> loc("kernel.py":8:3)
    // CHECK: kernel.py:9:3: error: unsafe read of LDS
    // CHECK: note: %{{.*}} is allocated at kernel.py:6:3
    %6 = ttg.local_load %1 : !ttg.memdesc<128xf32, #flat, #smem, mutable> -> tensor<128xf32, #row> loc("kernel.py":9:3)
    tt.return
  }
}

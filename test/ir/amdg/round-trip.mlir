// RUN: triton-opt --host=none %s | triton-opt --host=none | FileCheck %s
// RUN: %if triton-3.9-or-newer %{ triton-opt --host=always %s | FileCheck %s %}

// Buffer operations: read, verified and printed as they are, by us and by Triton.

// CHECK:      #blocked = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// CHECK:      module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
// CHECK-NEXT:   tt.func @amdg(%arg0: !tt.ptr<f32>, %arg1: tensor<1024xi32, #blocked>, %arg2: tensor<1024xi1, #blocked>) {
// CHECK-NEXT:     %cst = arith.constant dense<0.000000e+00> : tensor<1024xf32, #blocked>
// CHECK-NEXT:     %0 = amdg.buffer_load %arg0[%arg1] : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
// CHECK-NEXT:     %1 = amdg.buffer_load %arg0[%arg1], %arg2, %cst : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
// CHECK-NEXT:     amdg.buffer_store %0, %arg0[%arg1] : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
// CHECK-NEXT:     amdg.buffer_store %1, %arg0[%arg1], %arg2 : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
// CHECK-NEXT:     tt.return
// CHECK-NEXT:   }
// CHECK-NEXT: }
#blocked = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
  tt.func @amdg(%arg0: !tt.ptr<f32>, %arg1: tensor<1024xi32, #blocked>, %arg2: tensor<1024xi1, #blocked>) {
    %cst = arith.constant dense<0.000000e+00> : tensor<1024xf32, #blocked>
    %0 = amdg.buffer_load %arg0[%arg1] : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
    %1 = amdg.buffer_load %arg0[%arg1], %arg2, %cst : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
    amdg.buffer_store %0, %arg0[%arg1] : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
    amdg.buffer_store %1, %arg0[%arg1], %arg2 : !tt.ptr<f32> -> tensor<1024xf32, #blocked>
    tt.return
  }
}

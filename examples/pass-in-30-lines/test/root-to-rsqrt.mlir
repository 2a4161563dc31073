// RUN: triton-opt %s -split-input-file -example-root-to-rsqrt | FileCheck %s
// RUN: triton-opt %s -split-input-file -example-root-to-rsqrt='shared-roots=true' | FileCheck %s --check-prefix=SHARED

// CHECK-LABEL: @tensor
// CHECK-NOT: math.sqrt
// CHECK: %[[Y:.*]] = math.rsqrt %x : tensor<128xf32>
// CHECK-NEXT: tt.return %[[Y]]
tt.func @tensor(%x: tensor<128xf32>) -> tensor<128xf32> {
  %one = arith.constant dense<1.000000e+00> : tensor<128xf32>
  %root = math.sqrt %x : tensor<128xf32>
  %y = arith.divf %one, %root : tensor<128xf32>
  tt.return %y : tensor<128xf32>
}

// -----

// The root is used twice: the division stays, unless that is asked for.
// CHECK-LABEL: @shared
// CHECK: math.sqrt
// CHECK: arith.divf
// CHECK-NOT: math.rsqrt
// CHECK: tt.return
// SHARED-LABEL: @shared
// SHARED: math.sqrt
// SHARED: math.rsqrt
// SHARED-NOT: arith.divf
// SHARED: tt.return
tt.func @shared(%x: f32) -> (f32, f32) {
  %one = arith.constant 1.000000e+00 : f32
  %root = math.sqrt %x : f32
  %y = arith.divf %one, %root : f32
  tt.return %root, %y : f32, f32
}

// -----

// Must not change: 2 / sqrt(x), and a root that comes from elsewhere.
// CHECK-LABEL: @others
// CHECK: %[[A:.*]] = arith.divf
// CHECK: %[[B:.*]] = arith.divf
// CHECK: tt.return %[[A]], %[[B]]
tt.func @others(%x: f32, %r: f32) -> (f32, f32) {
  %one = arith.constant 1.000000e+00 : f32
  %two = arith.constant 2.000000e+00 : f32
  %root = math.sqrt %x : f32
  %a = arith.divf %two, %root : f32
  %b = arith.divf %one, %r : f32
  tt.return %a, %b : f32, f32
}

// Triton prints the CTA layout of a single wave as nothing, which it does not read again. A pass of ours
// between two of Triton's gets it through.

// RUN: triton-opt %s --canonicalize --allocate-shared-memory --canonicalize | FileCheck %s
// RUN: triton-opt %s --canonicalize --allocate-shared-memory | FileCheck %s
// REQUIRES: triton-3.8-or-newer

// CHECK: #ttg.amd_wmma<{version = 1, isTranspose = true, ctaLayout = {{.*}}}>
#w = #ttg.amd_wmma<{version = 1, ctaLayout = {warp = []}, isTranspose = true}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 1 : i32, "ttg.threads-per-warp" = 32 : i32} {
tt.func public @f(%x: tensor<16x16xbf16, #w>) -> tensor<16x16xbf16, #w> {
  // CHECK: tt.return %{{.*}} : tensor<16x16xbf16, #{{.*}}>
  tt.return %x : tensor<16x16xbf16, #w>
}
}

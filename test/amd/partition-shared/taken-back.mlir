// Marks, attributes and remarks of a choice that came to nothing are taken back.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-partition-shared -verify-diagnostics | FileCheck %s
// RUN: not triton-opt %s --pass-provider=ext --triton-ext-partition-shared=arch=gfx9999 2>&1 | FileCheck %s --check-prefix=ARCH
// RUN: not triton-opt %s --pass-provider=ext --triton-ext-partition-shared=capacity=-5 2>&1 | FileCheck %s --check-prefix=BYTES

// ARCH: expected a GPU whose LDS is known ({{.*}}gfx1250{{.*}}) for option 'arch', found 'gfx9999'
// BYTES: expected bytes of LDS, or 0 for all of it, for option 'capacity', found -5

// REQUIRES: triton-3.8-or-newer

#mma = #ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[1, 0], [2, 0]]}, instrShape = [16, 16, 32]}>
#shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [64, 64]}>
#padded = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [8, 64]}>
#many = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 128, partitionDim = 0, partitionLayout = #padded}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// No alignment mends what the kernel's author chose, so nothing can be chosen elsewhere either.
tt.func public @kernel(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) {
  // CHECK: ttg.local_alloc : () -> !ttg.memdesc<2048x64xf16,
  %m = ttg.local_alloc : () -> !ttg.memdesc<2048x64xf16, #many, #smem, mutable>
  tt.call @called(%b, %acc) : (tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, tensor<64x64xf32, #mma>) -> ()
  ttg.local_dealloc %m : !ttg.memdesc<2048x64xf16, #many, #smem, mutable>
  tt.return
}
// It would have to be inlined.
// CHECK: @called({{.*}} attributes {noinline = true}
tt.func private @called(%b: tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>>, %acc: tensor<64x64xf32, #mma>) attributes {noinline = true} {
  // CHECK: ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  // expected-remark @below {{'%a' stays in one partition: Triton reserves 139136 bytes for each buffer of '%m', which takes 139256}}
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable>
  %x = ttg.local_load %a : !ttg.memdesc<64x64xf16, #shared, #smem, mutable> -> tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>>
  %d = tt.dot %x, %b, %acc : tensor<64x64xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> * tensor<64x64xf16, #ttg.dot_op<{opIdx = 1, parent = #mma, kWidth = 8}>> -> tensor<64x64xf32, #mma>
  tt.return
}
}

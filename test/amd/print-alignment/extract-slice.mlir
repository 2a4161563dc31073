// Slices of tensors have what is known of the tensor; the common pass does not know them.

// RUN: triton-opt %s -test-print-amd-alignment -verify-diagnostics=only-expected -o /dev/null
// RUN: triton-opt %s -test-print-alignment 2>&1 >/dev/null | FileCheck %s

#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [16, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942", "ttg.threads-per-warp" = 64 : i32} {
tt.func @slices(%x: tensor<64x64xi32, #blocked> {tt.contiguity = dense<[1, 64]> : tensor<2xi32>, tt.divisibility = dense<[1, 16]> : tensor<2xi32>}) {
  // CHECK: amdg.extract_slice => contiguity = [1, 1], divisibility = [1, 1]
  // Columns 0 to 31 begin where the tensor does.
  // expected-remark @below {{amdg.extract_slice => contiguity = [1, 32], divisibility = [1, 16], constancy = [1, 1], constant_value = <none>}}
  %a = amdg.extract_slice %x [0, 0] : tensor<64x64xi32, #blocked> to tensor<64x32xi32, #blocked>
  // From column 16 on only 16 columns are a group of the tensor.
  // expected-remark @below {{contiguity = [1, 16], divisibility = [1, 16], constancy = [1, 1], constant_value = <none>}}
  %b = amdg.extract_slice %x [0, 16] : tensor<64x64xi32, #blocked> to tensor<64x32xi32, #blocked>
  tt.return
}
}

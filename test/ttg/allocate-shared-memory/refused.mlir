// RUN: triton-opt %s --host=none --pass-provider=ext -split-input-file -allocate-shared-memory-nv -verify-diagnostics

// Encodings with a parameter that nobody knows.

#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], colour = 3, vek = 4}>
#smem = #ttg.shared_memory
module attributes {ttg.target = "cuda:90"} {
  tt.func @unknown() {
    // expected-error @+1 {{is not known: '#ttg.swizzled_shared' has no 'colour'; '#ttg.swizzled_shared' has no 'vek'}}
    %0 = ttg.local_alloc : () -> !ttg.memdesc<64xi8, #shared, #smem, mutable>
    tt.return
  }
}

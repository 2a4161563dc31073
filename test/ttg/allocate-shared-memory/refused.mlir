// RUN: triton-opt %s --host=none --pass-provider=ext -split-input-file -allocate-shared-memory-nv -verify-diagnostics

// Encodings with a parameter that nobody knows, and GPUs that there are not.

#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], colour = 3, vek = 4}>
#smem = #ttg.shared_memory
module attributes {ttg.target = "cuda:90"} {
  tt.func @unknown() {
    // expected-error @+1 {{is not known: '#ttg.swizzled_shared' has no 'colour'; '#ttg.swizzled_shared' has no 'vek'}}
    %0 = ttg.local_alloc : () -> !ttg.memdesc<64xi8, #shared, #smem, mutable>
    tt.return
  }
}

// -----

// expected-error @+1 {{expected 'ttg.target' such as "cuda:90", found "cuda:7777"}}
module attributes {ttg.target = "cuda:7777"} {
  tt.func @no_such_gpu() {
    tt.return
  }
}

// -----

// expected-error @+1 {{expected 'ttg.target' such as "cuda:90", found "hip:gfx950"}}
module attributes {ttg.target = "hip:gfx950"} {
  tt.func @not_nvidia() {
    tt.return
  }
}

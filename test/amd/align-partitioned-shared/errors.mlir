// What no alignment mends.

// RUN: triton-opt %s --pass-provider=ext --triton-ext-align-partitioned-shared -split-input-file -verify-diagnostics -o /dev/null

#pad = #ttg.padded_shared<[64:+4] {order = [1, 0], shape = [8, 64]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 128, partitionDim = 0, partitionLayout = #pad}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// A byte of each of 128 groups is cut off, but for the 8 of the last padding: 120 bytes, and 139136
// is a multiple of 128.
tt.func public @cut_off() {
  // expected-error @below {{Triton reserves 139136 bytes for each buffer of '%0', which takes 139256: the value after it would be overwritten}}
  // expected-note @below {{use fewer groups, or more padding in each interval}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<2048x64xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<2048x64xf16, #p, #smem, mutable>
  tt.return
}
}

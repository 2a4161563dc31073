// An asynchronous operation of a newer Triton: what it issues is not known, so nothing is said about
// the waits around it.  By its name, or by its token.

// RUN: triton-opt %s --host=none --triton-ext-verify-async-waits -split-input-file -verify-diagnostics
// RUN: triton-opt %s --host=none --tritonamdgpu-update-async-wait-count -split-input-file -verify-diagnostics

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @by_name() {
  // expected-error @below {{'amdg.async_tdm_newer_copy' is asynchronous, but what it issues or waits for is not known}}
  // expected-note @below {{update it, or leave the numbers of waits to Triton (TRITON_EXT_WAITS=host in a compile)}}
  "amdg.async_tdm_newer_copy"() : () -> ()
  tt.return
}
}

// -----

module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @by_token() {
  // expected-error @below {{'ttg.newer_copy' is asynchronous, but what it issues or waits for is not known}}
  // expected-note @below {{update it, or leave the numbers of waits to Triton}}
  %t = "ttg.newer_copy"() : () -> !ttg.async.token
  tt.return
}
}

// -----

// An ordinary one changes nothing.
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
tt.func public @ordinary(%x: i32) {
  %y = "ttg.newer_arithmetic"(%x) : (i32) -> i32
  tt.return
}
}

// What operations need while they run, where all releases agree on it.

// RUN: triton-opt %s --host=none -test-print-allocation -verify-diagnostics -o /dev/null
// RUN: triton-opt %s --host=none -test-print-allocation=get-scratch-size-function=ValidConstant -o /dev/null 2>&1 | FileCheck %s --check-prefix=CONSTANT

#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#v = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
// CONSTANT: remark: convert
// CONSTANT: scratch offset = 0, size = 128
// CONSTANT: remark: size = 128
// All of the tensor: nothing is in registers in both layouts.
// expected-remark @below {{convert}}
// expected-remark @below {{size = 4096}}
tt.func public @convert(%x: tensor<32x32xf32, #r>) {
  // expected-remark @below {{scratch offset = 0, size = 4096}}
  %0 = ttg.convert_layout %x : tensor<32x32xf32, #r> -> tensor<32x32xf32, #c>
  tt.return
}

// Lanes of one warp: nothing. Warps: an element for each of them and each row.
// expected-remark @below {{reduce}}
// expected-remark @below {{size = 512}}
tt.func public @reduce(%x: tensor<32x4xf32, #r>) {
  %0 = "tt.reduce"(%x) <{axis = 0 : i32}> ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    tt.reduce.return %s : f32
  }) : (tensor<32x4xf32, #r>) -> tensor<4xf32, #ttg.slice<{dim = 0, parent = #r}>>
  // expected-remark @below {{scratch offset = 0, size = 512}}
  %1 = "tt.reduce"(%x) <{axis = 1 : i32}> ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    tt.reduce.return %s : f32
  }) : (tensor<32x4xf32, #r>) -> tensor<32xf32, #ttg.slice<{dim = 1, parent = #r}>>
  tt.return
}

// One element for each of 4 warps and each of 2 rounds along the axis.
// expected-remark @below {{scan}}
// expected-remark @below {{size = 32}}
tt.func public @scan(%x: tensor<256xf32, #v>) {
  // expected-remark @below {{scratch offset = 0, size = 32}}
  %0 = "tt.scan"(%x) <{axis = 0 : i32, reverse = false}> ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    tt.scan.return %s : f32
  }) : (tensor<256xf32, #v>) -> tensor<256xf32, #v>
  tt.return
}

// The source across warps; nothing along lanes.
// expected-remark @below {{gather}}
// expected-remark @below {{size = 512}}
tt.func public @gather(%x: tensor<256xf16, #v>, %i: tensor<256xi32, #v>, %y: tensor<32x4xf32, #r>, %j: tensor<32x4xi32, #r>) {
  // expected-remark @below {{scratch offset = 0, size = 512}}
  %0 = tt.gather %x[%i] {axis = 0 : i32} : (tensor<256xf16, #v>, tensor<256xi32, #v>) -> tensor<256xf16, #v>
  %1 = tt.gather %y[%j] {axis = 0 : i32} : (tensor<32x4xf32, #r>, tensor<32x4xi32, #r>) -> tensor<32x4xf32, #r>
  tt.return
}

// A scalar for all threads, if anybody asks.
// expected-remark @below {{atomic}}
// expected-remark @below {{size = 8}}
tt.func public @atomic(%p: !tt.ptr<i64>, %v: i64, %m: i1) -> i64 {
  // expected-remark @below {{scratch offset = 0, size = 8}}
  %0 = tt.atomic_rmw add, acq_rel, gpu, %p, %v, %m : (!tt.ptr<i64>, i64, i1) -> i64
  %1 = tt.atomic_rmw add, acq_rel, gpu, %p, %v, %m : (!tt.ptr<i64>, i64, i1) -> i64
  tt.return %0 : i64
}

// A bin for each lane at least.
// expected-remark @below {{histogram}}
// expected-remark @below {{size = 128}}
tt.func public @histogram(%x: tensor<256xi32, #v>) {
  // expected-remark @below {{scratch offset = 0, size = 128}}
  %0 = tt.histogram %x : tensor<256xi32, #v> -> tensor<16xi32, #v>
  tt.return
}
}

// Arguments, results, comparisons and loops have remarks; the module stays as it is.

// RUN: triton-opt %s -test-tritonamdgpu-range-analysis -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -test-tritonamdgpu-range-analysis -split-input-file 2>/dev/null | FileCheck %s

// CHECK-LABEL: tt.func @tile
// CHECK: %pid = tt.get_program_id x : i32
module attributes {"test.pid-bound-x" = 99 : i32} {
// expected-remark @+2 {{arg 0: unsigned : [0, 1] signed : [-1, 0]}}
// expected-remark @+2 {{arg 1: unsigned : [1, 4096] signed : [1, 4096]}}
tt.func @tile(%flag: i1,
              %n: i32, %p: !tt.ptr<f32>) {
  // expected-remark @below {{unsigned : [1, 1] signed : [1, 1]}}
  // expected-remark @below {{non-neg}}
  %c1 = arith.constant 1 : i32
  // expected-remark @below {{unsigned : [4096, 4096] signed : [4096, 4096]}}
  // expected-remark @below {{non-neg}}
  %c4096 = arith.constant 4096 : i32
  // Assumed conditions are true.
  // expected-remark @below {{unsigned : [1, 1] signed : [-1, -1]}}
  // expected-remark @below {{result is true}}
  %low = arith.cmpi sge, %n, %c1 : i32
  llvm.intr.assume %low : i1
  // expected-remark @below {{unsigned : [1, 1] signed : [-1, -1]}}
  // expected-remark @below {{result is true}}
  %high = arith.cmpi sle, %n, %c4096 : i32
  llvm.intr.assume %high : i1
  // expected-remark @below {{unsigned : [0, 99] signed : [0, 99]}}
  // expected-remark @below {{non-neg}}
  %pid = tt.get_program_id x : i32
  // 99 * 4096 = 405504.
  // expected-remark @below {{unsigned : [0, 405504] signed : [0, 405504]}}
  // expected-remark @below {{non-neg}}
  %start = arith.muli %pid, %c4096 : i32
  // Nothing is known of both sides: no outcome.
  // expected-remark @below {{unsigned : [0, 1] signed : [-1, 0]}}
  %open = arith.cmpi slt, %start, %n : i32
  // expected-remark @below {{unsigned : [0, 0] signed : [0, 0]}}
  // expected-remark @below {{non-neg}}
  %zero = arith.constant 0 : i32
  // Negative for certain.
  // expected-remark @below {{unsigned : [4294963200, 4294967295] signed : [-4096, -1]}}
  %negative = arith.subi %zero, %n : i32
  // expected-remark @below {{unsigned : [0, 0] signed : [0, 0]}}
  // expected-remark @below {{result is false}}
  // expected-remark @below {{non-neg}}
  %never = arith.cmpi sgt, %negative, %c1 : i32
  tt.return
}
}

// -----

// A slice has the numbers of the tensor; an argument alone is not numbered.
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [16, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942", "ttg.threads-per-warp" = 64 : i32} {
// expected-remark @below {{unsigned : [0, 4294967295] signed : [-2147483648, 2147483647]}}
tt.func @slice(%x: tensor<64x64xi32, #blocked>) {
  // expected-remark @below {{unsigned : [15, 15] signed : [15, 15]}}
  // expected-remark @below {{non-neg}}
  %mask = arith.constant dense<15> : tensor<64x64xi32, #blocked>
  // expected-remark @below {{unsigned : [0, 15] signed : [0, 15]}}
  // expected-remark @below {{non-neg}}
  %y = arith.andi %x, %mask : tensor<64x64xi32, #blocked>
  // expected-remark @below {{unsigned : [0, 15] signed : [0, 15]}}
  // expected-remark @below {{non-neg}}
  %z = amdg.extract_slice %y [0, 32] : tensor<64x64xi32, #blocked> to tensor<64x32xi32, #blocked>
  tt.return
}
}

// -----

// Trip counts are multiplied with those of the loops around; 1025 stands for an unknown one.
// expected-remark @+1 {{arg 0: unsigned : [0, 4294967295] signed : [-2147483648, 2147483647]}}
tt.func @loops(%n: i32, %p: !tt.ptr<i32>) {
  // expected-remark @below {{unsigned : [0, 0] signed : [0, 0]}}
  // expected-remark @below {{non-neg}}
  %c0 = arith.constant 0 : i32
  // expected-remark @below {{unsigned : [3, 3] signed : [3, 3]}}
  // expected-remark @below {{non-neg}}
  %c3 = arith.constant 3 : i32
  // expected-remark @below {{unsigned : [12, 12] signed : [12, 12]}}
  // expected-remark @below {{non-neg}}
  %c12 = arith.constant 12 : i32
  // 4 iterations outside of 4: 16 times 3 is 48, of which the first four are 12.
  // expected-remark @below {{unsigned : [48, 48] signed : [48, 48]}}
  // expected-remark @below {{non-neg}}
  // expected-remark @below {{inferred total trip count: 4}}
  %r = scf.for %i = %c0 to %c12 step %c3 iter_args(%a = %c0) -> (i32) : i32 {
    // expected-remark @below {{unsigned : [12, 48] signed : [12, 48]}}
    // expected-remark @below {{non-neg}}
    // expected-remark @below {{inferred total trip count: 16}}
    %s = scf.for %j = %c0 to %c12 step %c3 iter_args(%b = %a) -> (i32) : i32 {
      // expected-remark @below {{unsigned : [3, 48] signed : [3, 48]}}
      // expected-remark @below {{non-neg}}
      %t = arith.addi %b, %c3 : i32
      scf.yield %t : i32
    }
    scf.yield %s : i32
  }
  // expected-remark @below {{inferred total trip count: 1025}}
  scf.for %k = %c0 to %c12 step %n : i32 {
    tt.store %p, %k : !tt.ptr<i32>
  }
  tt.return
}

// -----

// Pointers and floats have no ranges.
tt.func @nothing(%p: !tt.ptr<f32>) {
  %x = tt.load %p : !tt.ptr<f32>
  %y = arith.addf %x, %x : f32
  tt.store %p, %y : !tt.ptr<f32>
  tt.return
}

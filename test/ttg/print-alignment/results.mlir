// Every result has one remark, also where nothing is known of it.

// RUN: triton-opt %s -test-print-alignment -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -test-print-alignment -split-input-file 2>/dev/null | FileCheck %s

// CHECK-LABEL: tt.func public @rows
// CHECK-NEXT: %row = tt.get_program_id x : i32
tt.func public @rows(%x: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %n: i32 {tt.divisibility = 4 : i32}) {
  // expected-remark @below {{contiguity = [1], divisibility = [1], constancy = [1], constant_value = <none>}}
  %row = tt.get_program_id x : i32
  // expected-remark @below {{contiguity = [1], divisibility = [4], constancy = [1], constant_value = 4}}
  %c4 = arith.constant 4 : i32
  // expected-remark @below {{contiguity = [1], divisibility = [4], constancy = [1], constant_value = <none>}}
  %first = arith.muli %row, %c4 : i32
  // 4 divides both factors, so that 4 * 4 = 16 divides the product.
  // expected-remark @below {{contiguity = [1], divisibility = [16], constancy = [1], constant_value = <none>}}
  %start = arith.muli %first, %n : i32
  // expected-remark @below {{contiguity = [1], divisibility = [16], constancy = [64], constant_value = <none>}}
  %starts = tt.splat %start : i32 -> tensor<64xi32>
  // 2^30, the largest power of two in an i32, divides 0.
  // expected-remark @below {{contiguity = [64], divisibility = [1073741824], constancy = [1], constant_value = <none>}}
  %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
  // expected-remark @below {{contiguity = [64], divisibility = [16], constancy = [1], constant_value = <none>}}
  %offsets = arith.addi %starts, %lane : tensor<64xi32>
  // expected-remark @below {{contiguity = [1], divisibility = [16], constancy = [64], constant_value = <none>}}
  %base = tt.splat %x : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>>
  // 16 elements of 2 bytes are 32 bytes, of which the base has 16.
  // expected-remark @below {{contiguity = [64], divisibility = [16], constancy = [1], constant_value = <none>}}
  %ptr = tt.addptr %base, %offsets : tensor<64x!tt.ptr<f16>>, tensor<64xi32>
  // expected-remark @below {{contiguity = [1], divisibility = [1], constancy = [1], constant_value = <none>}}
  %v = tt.load %ptr : tensor<64x!tt.ptr<f16>>
  tt.store %ptr, %v : tensor<64x!tt.ptr<f16>>
  tt.return
}

// -----

// True is -1, as a signed number; more results than one are numbered.
tt.func @truth(%x: tensor<8x2xi32>) {
  // expected-remark @below {{arith.constant => contiguity = [1], divisibility = [1], constancy = [1], constant_value = -1}}
  %true = arith.constant true
  // expected-remark @below {{constancy = [8], constant_value = -1}}
  %all = tt.splat %true : i1 -> tensor<8xi1>
  // expected-remark @below {{divisibility = [4611686018427387904], constancy = [1], constant_value = 0}}
  %false = arith.constant false
  // expected-remark @below {{tt.split result 0 => contiguity = [1]}}
  // expected-remark @below {{tt.split result 1 => contiguity = [1]}}
  %a, %b = tt.split %x : tensor<8x2xi32> -> tensor<8xi32>
  tt.return
}

// -----

// An operation that is poison for its operands has no constant: 127 + 1, 1 / 0, 1 << 8.
tt.func @poison() {
  // expected-remark @below {{constant_value = 127}}
  %most = arith.constant 127 : i8
  // expected-remark @below {{constant_value = 1}}
  %one = arith.constant 1 : i8
  // expected-remark @below {{constant_value = 0}}
  %none = arith.constant 0 : i8
  // expected-remark @below {{constant_value = 8}}
  %bits = arith.constant 8 : i8
  // expected-remark @below {{constant_value = -128}}
  %wraps = arith.addi %most, %one : i8
  // expected-remark @below {{constant_value = <none>}}
  %kept = arith.addi %most, %one overflow<nsw> : i8
  // expected-remark @below {{constant_value = <none>}}
  %quotient = arith.divui %one, %none : i8
  // expected-remark @below {{constant_value = <none>}}
  %shifted = arith.shli %one, %bits : i8
  tt.return
}

// -----

// No results, no remarks; what stands in no function has none either.
tt.func @nothing(%p: !tt.ptr<i32>, %v: i32) {
  tt.store %p, %v : !tt.ptr<i32>
  tt.return
}

// -----

// What upstream's analysis does not claim: elements of a splat float are equal, a loop of one iteration
// ends with what it adds, a smaller hint takes nothing away, and an operation that is never executed has
// the facts of its operands.
tt.func @more(%n: i32 {tt.divisibility = 4096 : i32}) {
  // expected-remark @below {{contiguity = [1, 1], divisibility = [1, 1], constancy = [8, 4], constant_value = <none>}}
  %half = arith.constant dense<5.000000e-01> : tensor<8x4xf32>
  // expected-remark @below {{divisibility = [4096], constancy = [16]}}
  %all = tt.splat %n {tt.divisibility = dense<1024> : tensor<1xi32>} : i32 -> tensor<16xi32>
  // expected-remark @below {{constant_value = 0}}
  %c0 = arith.constant 0 : i32
  // expected-remark @below {{constant_value = 64}}
  %c64 = arith.constant 64 : i32
  // expected-remark @below {{constant_value = 128}}
  %c128 = arith.constant 128 : i32
  // expected-remark @below {{contiguity = [1], divisibility = [64], constancy = [1], constant_value = 64}}
  %once = scf.for %i = %c0 to %c64 step %c64 iter_args(%a = %c0) -> (i32)  : i32 {
    // expected-remark @below {{contiguity = [1], divisibility = [64], constancy = [1], constant_value = 64}}
    %b = arith.addi %a, %c64 : i32
    scf.yield %b : i32
  }
  // expected-remark @below {{contiguity = [1], divisibility = [64], constancy = [1], constant_value = <none>}}
  %twice = scf.for %j = %c0 to %c128 step %c64 iter_args(%c = %c0) -> (i32)  : i32 {
    // expected-remark @below {{contiguity = [1], divisibility = [64], constancy = [1], constant_value = <none>}}
    %d = arith.addi %c, %c64 : i32
    scf.yield %d : i32
  }
  // expected-remark @below {{constant_value = 0}}
  %false = arith.constant false
  scf.if %false {
    // expected-remark @below {{contiguity = [1], divisibility = [64], constancy = [1], constant_value = 192}}
    %never = arith.addi %c64, %c128 : i32
  }
  tt.return
}

// RUN: triton-opt %s -split-input-file --host=none -triton-loop-split | FileCheck %s
// RUN: triton-opt %s -split-input-file --host=always -triton-loop-split -o /dev/null
// RUN: not triton-opt %s -split-input-file --host=none -triton-loop-split='at=3' 2>&1 | FileCheck %s --check-prefix=OPTION

// OPTION: error: pass 'triton-loop-split' has no option 'at'

// i < limit with a step of 1: true up to the limit, or to the end of the loop if that comes first,
// and for no iteration if the first one is not below the limit. The limit is the first number of
// the second loop.

// CHECK-LABEL: @less
// CHECK:      %[[SOME:.*]] = arith.cmpi slt, %low, %limit
// CHECK:      %[[ALL:.*]] = arith.cmpi sge, %limit, %high
// CHECK:      %[[END:.*]] = arith.select %[[ALL]], %high, %limit
// CHECK:      %[[SPLIT:.*]] = arith.select %[[SOME]], %[[END]], %low
// CHECK-NEXT: %[[FIRST:.*]] = scf.for %[[I:.*]] = %low to %[[SPLIT]] step %one iter_args(%[[X:.*]] = %x)
// CHECK-NEXT:   %[[SUM:.*]] = arith.addi %[[X]], %[[I]]
// CHECK-NEXT:   scf.yield %[[SUM]]
// CHECK:      %[[SECOND:.*]] = scf.for %[[J:.*]] = %[[SPLIT]] to %high step %one iter_args(%[[Y:.*]] = %[[FIRST]])
// CHECK-NEXT:   %[[DIFFERENCE:.*]] = arith.subi %[[Y]], %[[J]]
// CHECK-NEXT:   scf.yield %[[DIFFERENCE]]
// CHECK:      tt.return %[[SECOND]]
tt.func @less(%low: i32, %high: i32, %limit: i32, %x: i32) -> i32 {
  %one = arith.constant 1 : i32
  %r = scf.for %i = %low to %high step %one iter_args(%a = %x) -> (i32) : i32 {
    %is_below = arith.cmpi slt, %i, %limit : i32
    %b = scf.if %is_below -> (i32) {
      %sum = arith.addi %a, %i : i32
      scf.yield %sum : i32
    } else {
      %difference = arith.subi %a, %i : i32
      scf.yield %difference : i32
    }
    scf.yield %b : i32
  }
  tt.return %r : i32
}

// -----

// limit <= i is i >= limit. The limit 128 pid and the lower bound 0 are multiples of the step 64, so
// the limit is an iteration: the first loop ends with 128 pid - 64, and the second one starts at
// that - (-64). A branch without else leaves nothing where it is not taken.

// CHECK-LABEL: @greater_or_equal
// CHECK:      %[[PID:.*]] = arith.muli %pid, %c128
// CHECK:      %[[DELTA:.*]] = arith.constant -64 : i32
// CHECK:      %[[EDGE:.*]] = arith.addi %[[PID]], %[[DELTA]]
// CHECK:      %[[POINT:.*]] = arith.subi %[[EDGE]], %[[DELTA]]
// CHECK:      %[[SOME:.*]] = arith.cmpi slt, %c0, %[[PID]]
// CHECK:      %[[ALL:.*]] = arith.cmpi sge, %[[EDGE]], %high
// CHECK:      %[[END:.*]] = arith.select %[[ALL]], %high, %[[POINT]]
// CHECK:      %[[SPLIT:.*]] = arith.select %[[SOME]], %[[END]], %c0
// CHECK-NEXT: scf.for %{{.*}} = %c0 to %[[SPLIT]] step %c64 : i32 {
// CHECK-NEXT: }
// CHECK-NEXT: scf.for %[[J:.*]] = %[[SPLIT]] to %high step %c64 : i32 {
// CHECK-NEXT:   tt.store %p, %[[J]]
// CHECK-NEXT: }
tt.func @greater_or_equal(%high: i32, %p: !tt.ptr<i32>) {
  %c0 = arith.constant 0 : i32
  %c64 = arith.constant 64 : i32
  %c128 = arith.constant 128 : i32
  %pid = tt.get_program_id x : i32
  %limit = arith.muli %pid, %c128 : i32
  scf.for %i = %c0 to %high step %c64 : i32 {
    %is_behind = arith.cmpi sle, %limit, %i : i32
    scf.if %is_behind {
      tt.store %p, %i : !tt.ptr<i32>
    }
  }
  tt.return
}

// -----

// A limit that may be between two iterations, 35 with iterations 0, 16, 32, 48: the loop that was
// there runs. 47 is one short of one, and the second loop starts at 47 + 1.

// CHECK-LABEL: @between
// CHECK:      %[[REST:.*]] = arith.remui %{{.*}}, %c16
// CHECK:      %[[BETWEEN:.*]] = arith.cmpi ne, %[[REST]], %{{.*}}
// CHECK:      %[[MORE:.*]] = arith.select %[[BETWEEN]]
// CHECK:      %[[SPLIT:.*]] = arith.addi %limit, %[[MORE]]
// CHECK:      %[[INSIDE:.*]] = arith.andi
// CHECK-NEXT: %[[POSSIBLE:.*]] = arith.andi %{{.*}}, %[[INSIDE]]
// CHECK:      scf.if %[[POSSIBLE]] {
// CHECK-NEXT:   scf.for %{{.*}} = %c0 to %[[SPLIT]] step %c16
// CHECK-NEXT:     tt.store
// CHECK-NEXT:   }
// CHECK-NEXT:   scf.for %{{.*}} = %[[SPLIT]] to %high step %c16
// CHECK-NEXT:   }
// CHECK-NEXT: } else {
// CHECK-NEXT:   scf.for %{{.*}} = %c0 to %high step %c16
// CHECK-NEXT:     arith.cmpi slt
// CHECK-NEXT:     scf.if
tt.func @between(%high: i32, %limit: i32, %p: !tt.ptr<i32>) {
  %c0 = arith.constant 0 : i32
  %c16 = arith.constant 16 : i32
  scf.for %i = %c0 to %high step %c16 : i32 {
    %is_below = arith.cmpi slt, %i, %limit : i32
    scf.if %is_below {
      tt.store %p, %i : !tt.ptr<i32>
    }
  }
  tt.return
}

// -----

// The inner loop first, then the outer one with both halves of the inner one: 2 x (1 + 2) loops. What
// else uses the comparison gets its outcome.

// CHECK-LABEL: @nested
// CHECK-COUNT-3: scf.for
// CHECK:      %[[TRUE:.*]] = arith.constant true
// CHECK:      tt.store %p, %[[TRUE]]
// CHECK-COUNT-3: scf.for
// CHECK:      %[[FALSE:.*]] = arith.constant false
// CHECK-NOT:  scf.if
// CHECK-NOT:  scf.for
// CHECK:      tt.return
tt.func @nested(%high: i32, %limit: i32, %p: !tt.ptr<i1>, %q: !tt.ptr<i32>) {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  scf.for %i = %zero to %high step %one : i32 {
    scf.for %j = %zero to %high step %one : i32 {
      %is_lower = arith.cmpi sgt, %j, %i : i32
      scf.if %is_lower {
        tt.store %q, %j : !tt.ptr<i32>
      }
    }
    %is_below = arith.cmpi slt, %i, %limit : i32
    scf.if %is_below {
      tt.store %p, %is_below : !tt.ptr<i1>
    }
    tt.store %p, %is_below : !tt.ptr<i1>
  }
  tt.return
}

// -----

// Must not change: a limit from inside the loop, an unsigned comparison, one that decides nothing,
// a step that is no constant.

// CHECK-LABEL: @others
// CHECK-COUNT-2: scf.for
// CHECK-NOT:  scf.for
tt.func @others(%high: i32, %limit: i32, %step: i32, %p: !tt.ptr<i32>, %q: !tt.ptr<i1>) {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  scf.for %i = %zero to %high step %one : i32 {
    %moving = tt.load %p : !tt.ptr<i32>
    %a = arith.cmpi slt, %i, %moving : i32
    scf.if %a {
      tt.store %p, %i : !tt.ptr<i32>
    }
    %b = arith.cmpi ult, %i, %limit : i32
    scf.if %b {
      tt.store %p, %i : !tt.ptr<i32>
    }
    %c = arith.cmpi slt, %i, %limit : i32
    tt.store %q, %c : !tt.ptr<i1>
  }
  scf.for %i = %zero to %high step %step : i32 {
    %d = arith.cmpi slt, %i, %limit : i32
    scf.if %d {
      tt.store %p, %i : !tt.ptr<i32>
    }
  }
  tt.return
}

// Named regions: which of them alias, which contain others, and the lanes of their state. All
// remarks stand at the module.

// RUN: triton-opt %s -test-buffer-region-alias -split-input-file -verify-diagnostics -o /dev/null
// RUN: triton-opt %s -test-buffer-region-alias -split-input-file 2>/dev/null | FileCheck %s

#s = #ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory

// The two halves of every row: each span reaches over rows of the other half, and no byte is in
// both. Lane 0 is the half that has the buffer's first bytes.
// CHECK-LABEL: tt.func public @halves
// CHECK-NEXT: %whole = ttg.local_alloc {allocation.offset = 0 : i32, test.region_name = "whole"}
// expected-remark @below {{left vs left: alias=true, lhs_contains_rhs=true, rhs_contains_lhs=true}}
// expected-remark @below {{left vs right: alias=false, lhs_contains_rhs=false, rhs_contains_lhs=false}}
// expected-remark @below {{left vs whole: alias=true, lhs_contains_rhs=false, rhs_contains_lhs=true}}
// expected-remark @below {{right vs right: alias=true, lhs_contains_rhs=true, rhs_contains_lhs=true}}
// expected-remark @below {{right vs whole: alias=true, lhs_contains_rhs=false, rhs_contains_lhs=true}}
// expected-remark @below {{whole vs whole: alias=true, lhs_contains_rhs=true, rhs_contains_lhs=true}}
// expected-remark-re @below {{left case [0, {{[0-9]+}}]: mask={0}}}
// expected-remark-re @below {{right case [32, {{[0-9]+}}]: mask={1}}}
// expected-remark @below {{whole case [0, 512]: mask={0,1}}}
// expected-remark @below {{state-plan: lanes=2}}
module attributes {test.print_state_plan, "ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func public @halves() {
    %whole = ttg.local_alloc {allocation.offset = 0 : i32, test.region_name = "whole"} : () -> !ttg.memdesc<8x16xi32, #s, #smem, mutable>
    %l = ttg.memdesc_subslice %whole[0, 0] : !ttg.memdesc<8x16xi32, #s, #smem, mutable> -> !ttg.memdesc<8x8xi32, #s, #smem, mutable, 8x16>
    %r = ttg.memdesc_subslice %whole[0, 8] : !ttg.memdesc<8x16xi32, #s, #smem, mutable> -> !ttg.memdesc<8x8xi32, #s, #smem, mutable, 8x16>
    %0 = ttg.local_load %l {test.region_name = "left"} : !ttg.memdesc<8x8xi32, #s, #smem, mutable, 8x16> -> tensor<8x8xi32>
    %1 = ttg.local_load %r {test.region_name = "right"} : !ttg.memdesc<8x8xi32, #s, #smem, mutable, 8x16> -> tensor<8x8xi32>
    tt.return
  }
}

// -----

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory

// Bytes that are listed, and a buffer that may be any memory: it aliases all, and its mask has a
// lane of its own. Byte 3 is in both lists.
// expected-remark @below {{one case [0, 4]: mask={0,1}}}
// expected-remark @below {{outside case unknown: mask={0,1,2,3}}}
// expected-remark @below {{two case [3, 3]: mask={1,2}}}
// expected-remark @below {{state-plan: lanes=4}}
module attributes {test.print_state_plan, test.state_plan_only} {
  tt.func private @one() attributes {test.region_name = "one", test.region_addresses = array<i32: 0, 1, 2, 3>}
  tt.func private @two() attributes {test.region_name = "two", test.region_addresses = array<i32: 3, 5>}
  tt.func public @f(%o: !ttg.memdesc<16xi32, #s, #smem, mutable>) {
    %x = ttg.local_load %o {test.region_name = "outside"} : !ttg.memdesc<16xi32, #s, #smem, mutable> -> tensor<16xi32>
    tt.return
  }
}

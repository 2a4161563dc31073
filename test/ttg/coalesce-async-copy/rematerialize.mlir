// Pointers and masks that are made of ranges and scalars are computed in the new layout instead of
// being converted; what was loaded or carried by a loop is converted.

// RUN: triton-opt %s --tritongpu-coalesce-async-copy | FileCheck %s

#p = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#b = #ttg.slice<{dim = 1, parent = #p}>
#c = #ttg.slice<{dim = 0, parent = #p}>
#line = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#rows = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[WIDE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [16], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
// CHECK-DAG: [[TILE:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [1, 16], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {

// CHECK-LABEL: @line(
// CHECK-NOT: ttg.convert_layout
// CHECK: [[P:%.*]] = tt.addptr %{{.*}} : tensor<64x!tt.ptr<i8>, [[WIDE]]>, tensor<64xi32, [[WIDE]]>
// CHECK: [[K:%.*]] = arith.cmpi slt, %{{.*}} : tensor<64xi32, [[WIDE]]>
// CHECK: ttg.async_copy_global_to_local [[P]], %{{.*}} mask [[K]] {contiguity = 16 : i32}
tt.func public @line(%x: !tt.ptr<i8> {tt.divisibility = 16 : i32}, %n: i32 {tt.divisibility = 16 : i32}, %m: !ttg.memdesc<64xi8, #line, #smem, mutable>) {
  %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #b>
  %n0 = tt.splat %n : i32 -> tensor<64xi32, #b>
  %k = arith.cmpi slt, %r, %n0 : tensor<64xi32, #b>
  %x0 = tt.splat %x : !tt.ptr<i8> -> tensor<64x!tt.ptr<i8>, #b>
  %p = tt.addptr %x0, %r : tensor<64x!tt.ptr<i8>, #b>, tensor<64xi32, #b>
  %t = ttg.async_copy_global_to_local %p, %m mask %k : tensor<64x!tt.ptr<i8>, #b> -> <64xi8, #line, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @tile(
// CHECK-NOT: ttg.convert_layout
// CHECK: tt.make_range {{.*}} : tensor<16xi32, #ttg.slice<{dim = 0, parent = [[TILE]]}>>
// CHECK: ttg.async_copy_global_to_local %{{.*}} : tensor<4x16x!tt.ptr<i8>, [[TILE]]>
tt.func public @tile(%x: !tt.ptr<i8> {tt.divisibility = 16 : i32}, %n: i32 {tt.divisibility = 16 : i32}, %m: !ttg.memdesc<4x16xi8, #rows, #smem, mutable>) {
  %a = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32, #b>
  %c = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32, #c>
  %a1 = tt.expand_dims %a {axis = 1 : i32} : tensor<4xi32, #b> -> tensor<4x1xi32, #p>
  %n1 = tt.splat %n : i32 -> tensor<4x1xi32, #p>
  %a2 = arith.muli %a1, %n1 : tensor<4x1xi32, #p>
  %c1 = tt.expand_dims %c {axis = 0 : i32} : tensor<16xi32, #c> -> tensor<1x16xi32, #p>
  %x1 = tt.splat %x : !tt.ptr<i8> -> tensor<4x1x!tt.ptr<i8>, #p>
  %q0 = tt.addptr %x1, %a2 : tensor<4x1x!tt.ptr<i8>, #p>, tensor<4x1xi32, #p>
  %q1 = tt.broadcast %q0 : tensor<4x1x!tt.ptr<i8>, #p> -> tensor<4x16x!tt.ptr<i8>, #p>
  %c2 = tt.broadcast %c1 : tensor<1x16xi32, #p> -> tensor<4x16xi32, #p>
  %q = tt.addptr %q1, %c2 : tensor<4x16x!tt.ptr<i8>, #p>, tensor<4x16xi32, #p>
  %u = ttg.async_copy_global_to_local %q, %m : tensor<4x16x!tt.ptr<i8>, #p> -> <4x16xi8, #rows, #smem, mutable>
  tt.return
}

// CHECK-LABEL: @carried(
// CHECK: scf.for
// CHECK: ttg.convert_layout
// CHECK: ttg.async_copy_global_to_local %{{.*}} : tensor<64x!tt.ptr<i8>, [[WIDE]]>
tt.func public @carried(%x: !tt.ptr<i8> {tt.divisibility = 16 : i32}, %n: i32, %m: !ttg.memdesc<64xi8, #line, #smem, mutable>) {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %size = arith.constant 64 : i32
  %step = tt.splat %size : i32 -> tensor<64xi32, #b>
  %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #b>
  %x0 = tt.splat %x : !tt.ptr<i8> -> tensor<64x!tt.ptr<i8>, #b>
  %p = tt.addptr %x0, %r : tensor<64x!tt.ptr<i8>, #b>, tensor<64xi32, #b>
  %end = scf.for %i = %zero to %n step %one iter_args(%q = %p) -> (tensor<64x!tt.ptr<i8>, #b>) : i32 {
    %t = ttg.async_copy_global_to_local %q, %m : tensor<64x!tt.ptr<i8>, #b> -> <64xi8, #line, #smem, mutable>
    %next = tt.addptr %q, %step : tensor<64x!tt.ptr<i8>, #b>, tensor<64xi32, #b>
    scf.yield %next : tensor<64x!tt.ptr<i8>, #b>
  }
  tt.return
}
}

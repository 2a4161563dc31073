// Buffer copies: offsets from one pointer, whose alignment counts as well. The rules are those of copies
// by pointers; upstream's pass leaves them alone, since Triton makes them later.

// RUN: triton-opt %s --host=none --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx942 | FileCheck %s --check-prefixes=CHECK,GFX942
// RUN: triton-opt %s --host=none --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx950 | FileCheck %s --check-prefixes=CHECK,GFX950
// RUN: triton-opt %s --host=none --tritonamdgpu-coalesce-async-copy=gfx-arch=gfx1250 | FileCheck %s --check-prefix=GFX1250

#one = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#two = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#eight = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#line = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
// CHECK-DAG: [[TWO:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// GFX950-DAG: [[EIGHT:#[a-z0-9]+]] = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
// Triton refuses buffer copies of gfx1250 from 3.8 on: nothing is done for them.
// GFX1250-NOT: ttg.convert_layout
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {

// Nothing copies 2 bytes.
// CHECK-LABEL: @one_element(
// GFX942: [[O:%.*]] = ttg.convert_layout %{{.*}} -> tensor<4096xi32, [[TWO]]>
// GFX942: amdg.buffer_load_to_local %{{.*}}[[[O]]] into %{{.*}} {contiguity = 2 : i32} : !tt.ptr<f16>[tensor<4096xi32, [[TWO]]>]  -> <4096xf16
// GFX950: [[O:%.*]] = ttg.convert_layout %{{.*}} -> tensor<4096xi32, [[EIGHT]]>
// GFX950: amdg.buffer_load_to_local %{{.*}}[[[O]]] into %{{.*}} {contiguity = 8 : i32} : !tt.ptr<f16>[tensor<4096xi32, [[EIGHT]]>]  -> <4096xf16
tt.func public @one_element(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %o: tensor<4096xi32, #one> {tt.contiguity = 4096 : i32, tt.divisibility = 16 : i32}, %m: !ttg.memdesc<4096xf16, #line, #smem, mutable>) {
  %t = amdg.buffer_load_to_local %q[%o] into %m : !tt.ptr<f16>[tensor<4096xi32, #one>]  -> <4096xf16, #line, #smem, mutable>
  tt.return
}

// The base is aligned to 4 bytes, whatever the offsets are.
// CHECK-LABEL: @base(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<4096xi32, [[TWO]]>
// CHECK: {contiguity = 2 : i32}
tt.func public @base(%q: !tt.ptr<f16> {tt.divisibility = 4 : i32}, %o: tensor<4096xi32, #eight> {tt.contiguity = 4096 : i32, tt.divisibility = 16 : i32}, %m: !ttg.memdesc<4096xf16, #line, #smem, mutable>) {
  %t = amdg.buffer_load_to_local %q[%o] into %m : !tt.ptr<f16>[tensor<4096xi32, #eight>]  -> <4096xf16, #line, #smem, mutable>
  tt.return
}

// Offsets are counted in elements: 4 of them are 8 bytes, of which 4 are copied.
// CHECK-LABEL: @offsets(
// CHECK: ttg.convert_layout %{{.*}} -> tensor<4096xi32, [[TWO]]>
tt.func public @offsets(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %o: tensor<4096xi32, #eight> {tt.contiguity = 4096 : i32, tt.divisibility = 4 : i32}, %m: !ttg.memdesc<4096xf16, #line, #smem, mutable>) {
  %t = amdg.buffer_load_to_local %q[%o] into %m : !tt.ptr<f16>[tensor<4096xi32, #eight>]  -> <4096xf16, #line, #smem, mutable>
  tt.return
}

// Mask and other go along; the mask selects pairs.
// CHECK-LABEL: @masked(
// CHECK: [[O:%.*]] = ttg.convert_layout %{{.*}} -> tensor<4096xi32, [[TWO]]>
// CHECK: [[K:%.*]] = ttg.convert_layout %{{.*}} -> tensor<4096xi1, [[TWO]]>
// CHECK: [[X:%.*]] = ttg.convert_layout %{{.*}} -> tensor<4096xf16, [[TWO]]>
// CHECK: amdg.buffer_load_to_local %{{.*}}[[[O]]] mask = [[K]] other = [[X]] into %{{.*}} {contiguity = 2 : i32} : !tt.ptr<f16>[tensor<4096xi32, [[TWO]]>] tensor<4096xf16, [[TWO]]> -> <4096xf16
tt.func public @masked(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %o: tensor<4096xi32, #eight> {tt.contiguity = 4096 : i32, tt.divisibility = 16 : i32}, %k: tensor<4096xi1, #eight> {tt.constancy = 2 : i32}, %x: tensor<4096xf16, #eight>, %m: !ttg.memdesc<4096xf16, #line, #smem, mutable>) {
  %t = amdg.buffer_load_to_local %q[%o] mask = %k other = %x into %m : !tt.ptr<f16>[tensor<4096xi32, #eight>] tensor<4096xf16, #eight> -> <4096xf16, #line, #smem, mutable>
  tt.return
}

// 16 bytes are what gfx950 copies.
// CHECK-LABEL: @wide(
// GFX942: ttg.convert_layout
// GFX950-NOT: ttg.convert_layout
tt.func public @wide(%q: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %o: tensor<4096xi32, #eight> {tt.contiguity = 4096 : i32, tt.divisibility = 16 : i32}, %m: !ttg.memdesc<4096xf16, #line, #smem, mutable>) {
  %t = amdg.buffer_load_to_local %q[%o] into %m : !tt.ptr<f16>[tensor<4096xi32, #eight>]  -> <4096xf16, #line, #smem, mutable>
  tt.return
}
}

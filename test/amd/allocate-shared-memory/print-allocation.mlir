// The remarks of upstream's test pass.

// RUN: triton-opt %s -test-print-allocation=partition-size=65536 -verify-diagnostics -o /dev/null

#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, partitionLayout = #s}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
// expected-remark @below {{callee}}
// expected-remark @below {{size = 69632}}
tt.func private @callee() {
  // expected-remark @below {{offset = 0, size = 4096}}
  // expected-remark @below {{offset = 65536, size = 4096}}
  %0 = ttg.local_alloc : () -> !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  ttg.local_dealloc %0 : !ttg.memdesc<128x32xf16, #p, #smem, mutable>
  tt.return
}
// expected-remark @below {{kernel}}
// expected-remark @below {{size = 69632}}
tt.func public @kernel(%x: tensor<128xi32>, %p: !tt.ptr<i32>, %v: i32, %m: i1) {
  // expected-remark @below {{scratch offset = 0, size = 256}}
  %0 = tt.histogram %x : tensor<128xi32> -> tensor<64xi32>
  // expected-remark @below {{virtual offset = 0, size = 69632}}
  tt.call @callee() : () -> ()
  // expected-remark @below {{scratch offset = 0, size = 4}}
  %1 = tt.atomic_rmw add, acq_rel, gpu, %p, %v, %m : (!tt.ptr<i32>, i32, i1) -> i32
  tt.store %p, %1 : !tt.ptr<i32>
  tt.return
}
}

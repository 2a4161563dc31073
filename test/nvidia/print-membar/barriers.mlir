// Accesses of different threads to the same bytes get a barrier in between; offsets are those of the text.

// RUN: triton-opt %s --host=none -test-print-membar -split-input-file | FileCheck %s

#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.shared = 4096 : i32} {
  // One barrier for both reads, one between the reads and the next write.
  // CHECK-LABEL: @write_read_write
  // CHECK: ttg.local_alloc
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_load
  // CHECK-NEXT: ttg.local_load
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_store
  // CHECK-NEXT: tt.return
  tt.func @write_read_write(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    %0 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
    %1 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
    ttg.local_store %x, %a : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    tt.return
  }

  // Bytes 0 to 1024 and 512 to 1536 meet, 0 to 1024 and 2048 to 3072 do not.
  // CHECK-LABEL: @bytes
  // CHECK: local_alloc {{.*}}allocation.offset = 0
  // CHECK-NEXT: local_alloc {{.*}}allocation.offset = 2048
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: local_alloc {{.*}}allocation.offset = 512
  // CHECK-NEXT: tt.return
  tt.func @bytes(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %b = ttg.local_alloc %x {allocation.offset = 2048 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %c = ttg.local_alloc %x {allocation.offset = 512 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }

  // Scratch is written, exchanged, read: the barrier inside also ends what came before.
  // CHECK-LABEL: @scratch
  // CHECK: ttg.local_alloc
  // CHECK-NEXT: "tt.reduce"
  // CHECK: }) {
  // CHECK-NEXT: ttg.local_load
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_alloc
  // CHECK-NEXT: tt.return
  tt.func @scratch(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %r = "tt.reduce"(%x) <{axis = 0 : i32}> ({
    ^bb0(%l: f16, %m: f16):
      %s = arith.addf %l, %m : f16
      tt.reduce.return %s : f16
    }) {allocation.offset = 2048 : i32, allocation.size = 256 : i32} : (tensor<16x32xf16, #row>) -> tensor<32xf16, #ttg.slice<{dim = 0, parent = #row}>>
    %0 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem> -> tensor<16x32xf16, #row>
    %b = ttg.local_alloc %x {allocation.offset = 2048 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }

  // Threads wait for their own copies only; two waits in a row share a barrier.
  // CHECK-LABEL: @waits
  // CHECK: ttg.async_wait {num = 1 : i32}
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: ttg.async_wait {num = 0 : i32}
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: tt.return
  tt.func @waits(%i: i32) {
    ttg.async_wait {num = 1 : i32}
    %j = arith.addi %i, %i : i32
    ttg.async_wait {num = 0 : i32}
    tt.return
  }

  // What is read in one iteration is written in the next one; slots i and i + 1 of three differ.
  // CHECK-LABEL: @loop
  // CHECK: scf.for
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: arith.remsi
  // CHECK-NEXT: arith.remsi
  // CHECK-NEXT: ttg.memdesc_index
  // CHECK-NEXT: ttg.memdesc_index
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_load
  // CHECK-NEXT: ttg.local_store
  // CHECK-NEXT: }
  tt.func @loop(%n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<3x16x32xf16, #sh, #smem, mutable>
    scf.for %i = %c0 to %n step %c1 : i32 {
      %next = arith.addi %i, %c1 : i32
      %r = arith.remsi %i, %c3 : i32
      %w = arith.remsi %next, %c3 : i32
      %from = ttg.memdesc_index %a[%r] : !ttg.memdesc<3x16x32xf16, #sh, #smem, mutable> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
      %to = ttg.memdesc_index %a[%w] : !ttg.memdesc<3x16x32xf16, #sh, #smem, mutable> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
      %x = ttg.local_load %from : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
      ttg.local_store %x, %to : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    }
    tt.return
  }

  // The called function leaves its write open, 1024 bytes up in its caller's memory, and reads what
  // it is handed.
  // CHECK-LABEL: @callee
  // CHECK-NOT: ttg.barrier
  // CHECK-LABEL: @caller
  // CHECK: ttg.local_store
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: tt.call @callee
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: local_alloc {{.*}}allocation.offset = 1024
  // CHECK-NEXT: tt.return
  tt.func private @callee(%x: tensor<16x32xf16, #row>, %b: !ttg.memdesc<16x32xf16, #sh, #smem, mutable>) {
    %a = ttg.local_alloc %x {allocation.offset = 0 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %0 = ttg.local_load %b : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
    tt.return
  }
  tt.func public @caller(%x: tensor<16x32xf16, #row>) {
    %b = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    ttg.local_store %x, %b : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    tt.call @callee(%x, %b) {allocation.offset = 1024 : i32, allocation.size = 1024 : i32} : (tensor<16x32xf16, #row>, !ttg.memdesc<16x32xf16, #sh, #smem, mutable>) -> ()
    %c = ttg.local_alloc %x {allocation.offset = 1024 : i32} : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }

  // All warps meet when captures are handed on; what a partition does is not in order with the others.
  // CHECK-LABEL: @partitions
  // CHECK: ttg.local_store
  // CHECK-NEXT: ttg.warp_specialize
  // CHECK-NEXT: default {
  // CHECK-NEXT: ttg.local_load
  // CHECK: partition0
  // CHECK-NEXT: ttg.local_load
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_store
  tt.func @partitions(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    ttg.local_store %x, %a : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
    ttg.warp_specialize(%a) attributes {allocation.offset = 2048 : i32, allocation.size = 16 : i32}
    default {
      %0 = ttg.local_load %a : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
      ttg.warp_yield
    }
    partition0(%b: !ttg.memdesc<16x32xf16, #sh, #smem, mutable>) num_warps(4) {
      %1 = ttg.local_load %b : !ttg.memdesc<16x32xf16, #sh, #smem, mutable> -> tensor<16x32xf16, #row>
      ttg.local_store %1, %b : tensor<16x32xf16, #row> -> !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
      ttg.warp_return
    } : (!ttg.memdesc<16x32xf16, #sh, #smem, mutable>) -> ()
    tt.return
  }
}

// -----

// Without offsets in the text, buffers lie where Triton puts them: here both at 0.
#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  // CHECK-LABEL: @no_offsets
  // CHECK: ttg.local_alloc
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttg.local_alloc
  tt.func @no_offsets(%x: tensor<16x32xf16, #row>) {
    %a = ttg.local_alloc %x : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    %b = ttg.local_alloc %x : (tensor<16x32xf16, #row>) -> !ttg.memdesc<16x32xf16, #sh, #smem>
    tt.return
  }
}

// -----

// Two warp groups that wait for their products meet only if no barrier follows.
#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [8, 1], order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 8 : i32} {
  // CHECK-LABEL: @products
  // CHECK-NEXT: ttng.warp_group_dot_wait %x {pendings = 0 : i32, warpGroupLocal}
  // CHECK-NEXT: ttg.barrier local
  // CHECK-NEXT: ttng.warp_group_dot_wait %x {pendings = 0 : i32}
  // CHECK-NEXT: tt.return
  tt.func @products(%x: tensor<32x32xf32, #row>) {
    ttng.warp_group_dot_wait %x {pendings = 0 : i32} : tensor<32x32xf32, #row>
    ttg.barrier local
    ttng.warp_group_dot_wait %x {pendings = 0 : i32} : tensor<32x32xf32, #row>
    tt.return
  }
}

module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func @f(%n: i32, %x: i0) {
    %0 = scf.for %i = %n to %n step %n iter_args(%s = %x) -> (i0) : i32 {
      %1 = arith.addi %s, %x : i0
      scf.yield %1 : i0
    }
    tt.return
  }
}

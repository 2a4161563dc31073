module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func @f(%x: i32,
    %y: i32 // the second one
  ) {
    tt.return
  }
}

module {
  llvm.return @f() attributes {a = 1 : i32} {
    tt.return
  }
}

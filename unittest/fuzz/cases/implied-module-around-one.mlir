tt.func @gone() {
  tt.return
}
module {
  tt.func @f(%a: i32) {
    tt.return
  }
}

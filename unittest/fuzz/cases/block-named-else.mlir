module {
  tt.func @f(%c: i1) {
    cf.cond_br %c, ^do, ^else {a.b}
  ^do:
    t.a "x"
    cf.br ^attributes
  ^else:
    cf.br ^attributes
  ^attributes:
    tt.return
  }
}

module attributes{""}{tt.func(%ptr:<>%val:i){%c0=h.s
scf.for%ptr%c0%val()
t.n}}
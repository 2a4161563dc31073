module{tt.func{%c0=a.x
scf.for%c0%c0%c0{}
t.e}}
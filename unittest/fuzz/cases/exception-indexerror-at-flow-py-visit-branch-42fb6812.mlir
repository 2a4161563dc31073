module{tt.func(){f.c^attributes
^attributes:t.n}}
tt.func(){%0=h.s
%4=scf.while
%t=f.2{}}
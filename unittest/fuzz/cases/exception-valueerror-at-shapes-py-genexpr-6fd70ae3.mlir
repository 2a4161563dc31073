tt.func(){%b=t.l->tensor<2x2xi2>
%c=tt.broadcast%b<>
t.r}
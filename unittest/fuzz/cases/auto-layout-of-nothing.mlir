module attributes{""}{tt.func(){h.s
%1=gluon.set_auto_layout(<>){}
%c=h.r<>}}
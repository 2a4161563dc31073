module attributes{""}{tt.func(<>(())(""())(())(""())(""())){h.c()loc()%x_29=t.8{}<<{}>>->tensor<2x1xi4>loc()%1=t.s
arith.muli%x_29%1()
t.n}()}
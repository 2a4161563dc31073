module attributes{""}{tt.func(<>){t.r(<>)<>
tt.atomic_rmw<>
t.n}}
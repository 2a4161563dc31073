#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[1]]}>
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100"} {
  tt.func @f() {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<0xi64, #shared, #ttg.shared_memory, mutable>
    %b = ttg.local_load %a : !ttg.memdesc<0xi64, #shared, #ttg.shared_memory, mutable> -> tensor<0xi64>
    tt.return
  }
}

// RUN: not triton-opt --host=none -split-input-file %s 2>&1 | FileCheck %s --strict-whitespace

// An alias without an equals sign.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+3]]:1: error: expected an alias definition, 'name = ...'{{$}}
// CHECK-NEXT:{{^}}#blocked{{$}}
// CHECK-NEXT:{{^}}^{{$}}
#blocked

// -----

// An alias of nothing.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+3]]:11: error: expected the value of alias '#blocked'{{$}}
// CHECK-NEXT:{{^}}#blocked ={{$}}
// CHECK-NEXT:{{^}}          ^{{$}}
#blocked =

// -----

// Two aliases of one name.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+4]]:1: error: redefinition of alias '#a'{{$}}
// CHECK-NEXT:{{^}}#a = #ttng.tensor_memory{{$}}
// CHECK-NEXT:{{^}}^{{$}}
#a = #ttg.shared_memory
#a = #ttng.tensor_memory

// -----

// A bracket too many.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+3]]:40: error: expected the end of the alias, found ')'{{$}}
// CHECK-NEXT:{{^}}#a = #ttg.slice<{dim = 0, parent = #b}>){{$}}
// CHECK-NEXT:{{^}}                                       ^{{$}}
#a = #ttg.slice<{dim = 0, parent = #b}>)

// -----

// An alias that is not closed.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+3]]:19: error: expected '}' to match this '{', found the end{{$}}
// CHECK-NEXT:{{^}}#a = #ttg.blocked<{sizePerThread = [1, 4]{{$}}
// CHECK-NEXT:{{^}}                  ^{{$}}
#a = #ttg.blocked<{sizePerThread = [1, 4]

// -----

// Metadata that is not closed.
// CHECK:{{^.*}}aliases.mlir:[[#@LINE+3]]:1: error: expected '#-}' to match this '{-#', found the end{{$}}
// CHECK-NEXT:{{^}}{-# external_resources: {}{{$}}
// CHECK-NEXT:{{^}}^{{$}}
{-# external_resources: {}

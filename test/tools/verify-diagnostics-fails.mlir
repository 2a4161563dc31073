// RUN: not triton-opt --host=none -split-input-file -verify-diagnostics %s 2>&1 | FileCheck %s --strict-whitespace
// RUN: not triton-opt --host=none -split-input-file -verify-diagnostics=only-expected %s 2>&1 | FileCheck %s --check-prefix=ONLY

// What is expected and does not come, and the reverse.

// CHECK:      {{.*}}fails.mlir:[[#@LINE+4]]:11: error: unexpected error: use of undeclared SSA value '%a'
// CHECK-NEXT:{{^}}"test.op"(%a) : (i32) -> (){{$}}
// CHECK-NEXT:{{^}}          ^{{$}}
// ONLY-NOT: unexpected error
"test.op"(%a) : (i32) -> ()

// -----

// The line is another one.
// CHECK:      {{.*}}fails.mlir:[[#@LINE+4]]:11: error: unexpected error: use of undeclared SSA value '%b'
// CHECK:      {{.*}}fails.mlir:[[#@LINE+2]]:4: error: expected error "'%b'" was not produced
// ONLY:       {{.*}}fails.mlir:[[#@LINE+1]]:4: error: expected error "'%b'" was not produced
// expected-error @+2 {{'%b'}}
"test.op"(%b) : (i32) -> ()

// -----

// Once more than it comes.
// CHECK-NOT: unexpected
// CHECK:      {{.*}}fails.mlir:[[#@LINE+1]]:4: error: expected error "'%c'" was not produced
// expected-error @+1 2 {{'%c'}}
"test.op"(%c) : (i32) -> ()

// -----

// Nothing is wrong here.
// CHECK:      {{.*}}fails.mlir:[[#@LINE+1]]:4: error: expected remark "anything" was not produced
// expected-remark @+1 {{anything}}
"test.op"() : () -> ()

// RUN: triton-opt --host=none -split-input-file -verify-diagnostics %s

// Every way to say where and what.

// expected-error @+1 {{use of undeclared SSA value '%a'}}
"test.op"(%a) : (i32) -> ()

// -----

// The nearest line below that is not one of these comments.
// expected-error@below {{undeclared SSA value '%b'}}
"test.op"(%b) : (i32) -> ()

// -----

"test.op"(%c) : (i32) -> () // expected-error {{'%c'}}

// -----

"test.op"(%d) : (i32) -> ()
// expected-error @above {{'%d'}}

// -----

"test.op"(%e) : (i32) -> ()
// Something in between.
// expected-error @-2 {{'%e'}}

// -----

// expected-error-re @+1 {{use of {{un[a-z]+}} SSA value '%{{.}}'}}
"test.op"(%f) : (i32) -> ()

// -----

// expected-error @+1 1 {{'%g'}}
"test.op"(%g) : (i32) -> ()

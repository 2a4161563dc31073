// RUN: triton-opt --host=none -split-input-file %s | FileCheck %s
// RUN: triton-opt --host=none --split-input-file="// =====" %s | FileCheck %s --check-prefix=OTHER
// RUN: triton-opt --host=none -split-input-file --output-split-marker="// next" %s | FileCheck %s --check-prefix=NEXT

// CHECK:      module {
// CHECK-NEXT:   "test.first"() : () -> ()
// CHECK-NEXT: }
// CHECK-NEXT: {{^}}// -----{{$}}
// CHECK-NEXT: module {
// CHECK-NEXT:   "test.second"() : () -> ()
// CHECK-NEXT: }
// CHECK-NEXT:   "test.third"() : () -> ()
// CHECK-NOT:  -----

// Only the other marker splits now; without one, everything is one part.
// OTHER:     "test.first"
// OTHER:     "test.second"
// OTHER:     {{^}}// -----{{$}}
// OTHER:     "test.third"

// NEXT:      {{^}}// next{{$}}
module {
  "test.first"() : () -> ()
}

// -----

module {
  "test.second"() : () -> ()
}
// =====
"test.third"() : () -> ()

; RUN: %{python} %S/Inputs/lower.py %s | sed '/^;/d' | FileCheck %s

; What LLVM may put between a marker and its copy.

declare i32 @triton_ext.im2col.pixel.2(i32, i32)

declare i32 @triton_ext.im2col.channel.2(i32, i32)

; The second box of a block starts 64 channels further: a sum is the channel's, or that of w.  Nothing
; that was known of the marker's bits is known of the numbers: no flags, and no "or".
; CHECK-LABEL: @sums
; CHECK-NEXT: %3 = add i32 %c, %box
; CHECK-NEXT: %4 = add i32 %w, 64
; CHECK-NEXT: trunc i32 %s to i16
; CHECK-NEXT: i32 %3, i32 %4, i32 %n
define void @sums(ptr %x, i32 %n, i32 %w, i32 %c, i32 %s, i32 %box) {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 %n, i32 %w)
  %2 = call i32 @triton_ext.im2col.channel.2(i32 %c, i32 %s)
  %3 = add nuw nsw i32 %2, %box
  %4 = or disjoint i32 %1, 64
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 true, ptr %x, ptr %x, i32 %3, i32 %4, ptr %x)
  ret void
}

; Ends of two branches that LLVM made one: w stays in its phi, n gets one beside it.
; CHECK-LABEL: @merged
; CHECK: end:
; CHECK-NEXT: %4 = phi i32 [ %w, %0 ], [ %v, %left ]
; CHECK-NEXT: [[N:%.*]] = phi i32 [ %n, %0 ], [ %m, %left ]
; CHECK-NEXT: %5 = select i1 %p, i32 %4, i32 poison
; CHECK-NEXT: [[N2:%.*]] = select i1 %p, i32 [[N]], i32 poison
; CHECK-NEXT: %6 = freeze i32 %5
; CHECK-NEXT: [[N3:%.*]] = freeze i32 [[N2]]
; CHECK-NEXT: trunc
; CHECK-NEXT: i32 %c, i32 %6, i32 [[N3]], ptr %x
define void @merged(ptr %x, i1 %p, i32 %n, i32 %m, i32 %w, i32 %v, i32 %c, i32 %s) {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 %n, i32 %w)
  %2 = call i32 @triton_ext.im2col.pixel.2(i32 %m, i32 %v)
  %3 = call i32 @triton_ext.im2col.channel.2(i32 %c, i32 %s)
  br i1 %p, label %left, label %end

left:                                             ; preds = %0
  br label %end

end:                                              ; preds = %0, %left
  %4 = phi i32 [ %1, %0 ], [ %2, %left ]
  %5 = select i1 %p, i32 %4, i32 poison
  %6 = freeze i32 %5
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 true, ptr %x, ptr %x, i32 %3, i32 %6, ptr %x)
  ret void
}

; A loop that carries a marker around itself.
; CHECK-LABEL: @around
; CHECK: loop:
; CHECK-NEXT: %3 = phi i32 [ %w, %0 ], [ %4, %loop ]
; CHECK-NEXT: [[N:%.*]] = phi i32 [ %n, %0 ], [ [[N2:%.*]], %loop ]
; CHECK-NEXT: %4 = select i1 %p, i32 %3, i32 %w
; CHECK-NEXT: [[N2]] = select i1 %p, i32 [[N]], i32 %n
define void @around(ptr %x, i1 %p, i32 %n, i32 %w, i32 %c) {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 %n, i32 %w)
  %2 = call i32 @triton_ext.im2col.channel.2(i32 %c, i32 %c)
  br label %loop

loop:                                             ; preds = %0, %loop
  %3 = phi i32 [ %1, %0 ], [ %4, %loop ]
  %4 = select i1 %p, i32 %3, i32 %1
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 true, ptr %x, ptr %x, i32 %2, i32 %4, ptr %x)
  br i1 %p, label %loop, label %end

end:                                              ; preds = %loop
  ret void
}

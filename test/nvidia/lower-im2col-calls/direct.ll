; RUN: %{python} %S/Inputs/lower.py %s | sed '/^;/d' | FileCheck %s

; As LLVM leaves a kernel of Triton 3.7: calls of markers beside their copy.  Coordinates go innermost
; first, c w h n, offsets w h; the calls, the declarations and what describes those go.

; CHECK-NOT: triton_ext.im2col

@global_smem = external addrspace(3) global [0 x i8], align 16

declare !dbg !5 i32 @triton_ext.im2col.pixel.3(i32, i32, i32) local_unnamed_addr

declare !dbg !6 i32 @triton_ext.im2col.channel.3(i32, i32, i32) local_unnamed_addr

declare i32 @triton_ext.im2col.pixel.2(i32, i32) local_unnamed_addr

declare i32 @triton_ext.im2col.channel.2(i32, i32) local_unnamed_addr

declare i32 @triton_ext.im2col.pixel.2.512(i32, i32) local_unnamed_addr

; CHECK-LABEL: define ptx_kernel void @rank4
; CHECK-NEXT: [[S:%.*]] = trunc i32 %s to i16, !dbg !8
; CHECK-NEXT: [[R:%.*]] = trunc i32 %r to i16, !dbg !8
; CHECK-NEXT: call void asm sideeffect "@$0 cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4, $5, $6}], [$7], {$8, $9};", "b,r,l,r,r,r,r,r,h,h"(i1 %p, ptr addrspace(3) @global_smem, ptr nonnull %x, i32 %c, i32 %w, i32 %h, i32 %n, ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @global_smem, i32 8192), i16 [[S]], i16 [[R]]) #2, !dbg !8
; CHECK-NEXT: ret void
define ptx_kernel void @rank4(ptr %x, i1 %p, i32 %n, i32 %h, i32 %w, i32 %c, i32 %r, i32 %s) !dbg !4 {
  %1 = call i32 @triton_ext.im2col.pixel.3(i32 %n, i32 %h, i32 %w), !dbg !7
  %2 = call i32 @triton_ext.im2col.channel.3(i32 %c, i32 %r, i32 %s), !dbg !7
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 %p, ptr addrspace(3) @global_smem, ptr nonnull %x, i32 %2, i32 %1, ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @global_smem, i32 8192)) #2, !dbg !8
  ret void
}

; Rank 3, and constants.
; CHECK-LABEL: define ptx_kernel void @rank3
; CHECK-NEXT: [[S:%.*]] = trunc i32 300 to i16
; CHECK-NEXT: cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4, $5}], [$6], {$7};", "b,r,l,r,r,r,r,h"(i1 true, ptr %x, ptr %x, i32 64, i32 -1, i32 0, ptr %x, i16 [[S]])
define ptx_kernel void @rank3(ptr %x) {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 0, i32 -1)
  %2 = call i32 @triton_ext.im2col.channel.2(i32 64, i32 300)
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 true, ptr %x, ptr %x, i32 %2, i32 %1, ptr %x)
  ret void
}

; A block of 512 pixels comes as two boxes of 256 rows: one by each of two warps, which only the first
; one issues now; or one behind the other, of which the first one is left.
; CHECK-LABEL: define ptx_kernel void @tall
; CHECK-NEXT: [[ROW:%.*]] = shl nuw nsw i32 %warp, 8
; CHECK-NEXT: [[W:%.*]] = add i32 %w, [[ROW]]
; CHECK-NEXT: [[S:%.*]] = trunc i32 %s to i16
; CHECK-NEXT: [[IN_BLOCK:%.*]] = and i32 [[ROW]], 511
; CHECK-NEXT: [[IS_FIRST:%.*]] = icmp eq i32 [[IN_BLOCK]], 0
; CHECK-NEXT: [[PRED:%.*]] = and i1 %p, [[IS_FIRST]]
; CHECK-NEXT: cp.async.bulk.tensor.3d.{{.*}}(i1 [[PRED]], ptr %x, ptr %x, i32 %c, i32 [[W]], i32 %n, ptr %x, i16 [[S]])
; CHECK-NEXT: [[S:%.*]] = trunc i32 %s to i16
; CHECK-NEXT: cp.async.bulk.tensor.3d.{{.*}}(i1 %p, ptr %x, ptr %x, i32 %c, i32 %w, i32 %n, ptr %x, i16 [[S]])
; CHECK-NEXT: %{{.*}} = add i32 %w, 256
; CHECK-NEXT: ret void
define ptx_kernel void @tall(ptr %x, i1 %p, i32 %n, i32 %w, i32 %c, i32 %s, i32 %warp) {
  %1 = call i32 @triton_ext.im2col.pixel.2.512(i32 %n, i32 %w)
  %2 = call i32 @triton_ext.im2col.channel.2(i32 %c, i32 %s)
  %3 = shl nuw nsw i32 %warp, 8
  %4 = add nsw i32 %1, %3
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 %p, ptr %x, ptr %x, i32 %2, i32 %4, ptr %x)
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 %p, ptr %x, ptr %x, i32 %2, i32 %1, ptr %x)
  %5 = add nsw i32 %1, 256
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 %p, ptr %x, ptr %x, i32 %2, i32 %5, ptr %x)
  ret void
}

; The mask of a multicast stands behind the offsets.
; CHECK-LABEL: define ptx_kernel void @multicast
; CHECK-NEXT: [[S:%.*]] = trunc i32 %s to i16
; CHECK-NEXT: call void asm sideeffect "@$0 cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [$1], [$2, {$3, $4, $5}], [$6], {$7}, $8;", "b,r,l,r,r,r,r,h,h"(i1 %p, ptr %x, ptr %x, i32 %c, i32 %w, i32 %n, ptr %x, i16 [[S]], i32 3)
; CHECK-NEXT: ret void
define ptx_kernel void @multicast(ptr %x, i1 %p, i32 %n, i32 %w, i32 %c, i32 %s) {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 %n, i32 %w)
  %2 = call i32 @triton_ext.im2col.channel.2(i32 %c, i32 %s)
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [$1], [$2, {$3, $4}], [$5], $6;", "b,r,l,r,r,r,h"(i1 %p, ptr %x, ptr %x, i32 %2, i32 %1, ptr %x, i32 3)
  ret void
}

; A tiled copy stays one.
; CHECK-LABEL: define ptx_kernel void @tiled
; CHECK-NEXT: cp.async.bulk.tensor.2d.shared::cta.global.mbarrier
define ptx_kernel void @tiled(ptr %x, i32 %a) {
  call void asm sideeffect "@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"(i1 true, ptr %x, ptr %x, i32 %a, i32 %a, ptr %x)
  ret void
}

!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "kernel.py", directory: "/nowhere")
!3 = !DISubroutineType(types: !{})
!4 = distinct !DISubprogram(name: "rank4", scope: !1, file: !1, line: 1, type: !3, unit: !0)
!5 = !DISubprogram(name: "triton_ext.im2col.pixel.3", scope: !1, file: !1, line: 1, type: !3)
!6 = !DISubprogram(name: "triton_ext.im2col.channel.3", scope: !1, file: !1, line: 1, type: !3)
!7 = !DILocation(line: 2, column: 5, scope: !4)
!8 = !DILocation(line: 3, column: 5, scope: !4)

; RUN: not %{python} %S/Inputs/lower.py %s 2>&1 | FileCheck %s

; The place is the user's where debug information has one.

declare i32 @triton_ext.im2col.pixel.2(i32, i32)

define void @f(ptr %x, i32 %a) !dbg !4 {
  %1 = call i32 @triton_ext.im2col.pixel.2(i32 %a, i32 %a)
; CHECK: /nowhere/kernel.py:12:7: error: an im2col position (start pixel of 2 values) is used by 'store': it is not a number and can only be passed to a load
  store i32 %1, ptr %x, align 4, !dbg !7
  ret void
}

!1 = !DIFile(filename: "kernel.py", directory: "/nowhere")
!4 = distinct !DISubprogram(name: "f", scope: !1, file: !1, line: 1)
!7 = !DILocation(line: 12, column: 7, scope: !4)

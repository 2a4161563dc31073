; RUN: %{python} %S/Inputs/lower.py %s | diff %s -

; Without a marker a module is not even read: this is none.
define void @f( {

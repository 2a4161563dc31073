"""Long texts take time and memory in proportion to their length."""

from __future__ import annotations

import subprocess
import sys

import pytest
from triton_ext.errors import ParseError, VerifyError, quoted_line, shortened
from triton_ext.host.diagnostics import of_error
from triton_ext.ir import parse

PROGRAM = """
import resource, sys
from triton_ext.ir import parse
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = eval(sys.argv[1])
module = parse(text, "t.mlir")
module.verify()
assert str(module) == text
for op in module.walk():
    dict(op.attributes)
    op.loc is None or op.loc.resolve()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(text))
"""
FUNCTION = "module {\\n  tt.func @f() {\\n    %s\\n    tt.return\\n  }\\n}\\n"
COUNT = 2_000_000
TEXTS = {
    "string": f"""'"t.x"() {{a = "' + "a" * {COUNT} + '"}} : () -> ()'""",
    "elements": f"""'%0 = t.x dense<"0x' + "A" * {COUNT} + '"> : tensor<4xi32>'""",
    "array": f"""'%0 = t.x array<i32: 1' + ", 1" * {COUNT // 3} + '>'""",
    "location": f"""'%0 = t.x 1 : i32 loc("' + "a" * {COUNT} + '":1:1)'""",
    "words": f"""'%0 = t.x {{a = #t.y<' + "a " * {COUNT // 2} + '>}}'""",
    "comment": f"""'// ' + "a" * {COUNT}""",
}
if sys.version_info >= (3, 11):  # before, a backslash takes 190 bytes
    TEXTS["escapes"] = f"""'"t.x"() {{a = "' + r"\\41" * {COUNT // 3} + '"}} : () -> ()'"""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_character_takes_some_bytes(text):
    program = PROGRAM.replace("eval(sys.argv[1])", f'"{FUNCTION}" % ({text})')
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 30


def test_a_long_line_is_quoted_around_its_caret():
    line = "ab" * 500_000
    shown, caret = quoted_line(line, 600_000)
    assert len(shown) < 500
    assert shown.startswith("...")
    assert shown.endswith("...")
    assert shown[caret.index("^")] == line[599_999] == "b"
    assert quoted_line(line, 1) == [line[:400] + "...", "^"]
    assert quoted_line("\tx y", 4) == ["\tx y", "\t  ^"]
    last, caret = quoted_line(line, len(line))
    assert last.endswith("b")
    assert len(caret) == len(last)


def test_messages_are_cut():
    assert shortened("short") == "short"
    assert (
        shortened("a" * 1000 + "b" * 50 + "c" * 1000)
        == f"{'a' * 1000} [50 characters] {'c' * 1000}"
    )
    text = f'module {{\n  %0 = arith.addi %x, %y {{a = "{"a" * 1_000_000}"}} : i32\n}}\n'
    with pytest.raises(ParseError) as caught:
        parse(text, "t.mlir")
    for error in (caught.value, of_error(caught.value)):
        assert len(str(error)) < 1000
    error = VerifyError("m" * 1_000_000, notes=("n" * 1_000_000,))
    assert len(str(error)) < 5000
    assert len(error.message) == 1_000_000

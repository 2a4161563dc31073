"""Triton's modules as text: the only boundary between its passes and ours."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from triton_ext import host
from triton_ext.errors import VerifyError
from triton_ext.host import module as host_module
from triton_ext.ir import Builder, parse

GOOD = """\
module {
  tt.func public @f(%x: i32) -> i32 {
    %y = arith.addi %x, %x : i32
    tt.return %y : i32
  }
}
"""


@pytest.fixture
def context():
    return host_module.new_context()


def test_text_goes_in_and_comes_out(context):
    module = host_module.parse_module(GOOD, context)
    assert module.context is context
    text = host_module.print_module(module)
    assert "arith.addi" in text
    assert "loc(" in text
    again = host_module.print_module(host_module.parse_module(text, context))
    assert again.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("module {", "expected"),
        (GOOD.replace("%x, %x", "%x, %z"), "use of undeclared SSA value name"),
        (GOOD.replace("tt.return %y : i32", "tt.return"), "<module>"),
    ],
)
def test_the_hosts_diagnostics_are_in_the_error(context, text, said):
    with pytest.raises(VerifyError, match="triton refuses the module") as caught:
        host_module.parse_module(text, context)
    assert said in str(caught.value)
    assert "triton-ext-" not in str(caught.value)  # the name of the temporary file


def test_stderr_is_given_back(context, capfd):
    with pytest.raises(VerifyError):
        host_module.parse_module("module {", context)
    os.write(2, b"still there\n")
    assert capfd.readouterr().err.endswith("still there\n")


def test_a_module_that_is_accepted_leaves_stderr_alone(context, monkeypatch):
    monkeypatch.setattr(host_module, "_captured_stderr", lambda: pytest.fail("stderr was taken"))
    host_module.parse_module("module {}", context)


def test_threads_get_their_own_errors_and_stderr_survives(context):
    before = os.readlink("/proc/self/fd/2")

    def refused(line):
        with pytest.raises(VerifyError, match=f'"<module>":{line}:') as caught:
            host_module.parse_module("\n" * (line - 1) + 'module { "odd.op"() : () }', context)
        return str(caught.value).count("error:")

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(refused, range(1, 41))) == {2}
    assert os.readlink("/proc/self/fd/2") == before


def test_verify_asks_with_every_dialect():

    host.verify(GOOD)
    host.verify(parse(GOOD))
    with pytest.raises(VerifyError, match="undeclared SSA value"):
        host.verify(GOOD.replace("%x, %x", "%x, %z"))


BAD = GOOD.replace("tt.return %y : i32", "tt.return %x, %x : i32, i32")


def test_verify_points_at_the_text_and_prints_nothing(capfd):
    with pytest.raises(VerifyError) as caught:
        host.verify(parse(BAD, "kernel.ttgir"))
    error = caught.value
    assert (error.filename, error.line, error.column) == ("kernel.ttgir", 4, 5)
    lines = str(error).split("\n")
    assert lines[0].startswith("kernel.ttgir:4:5: error: 'tt.return' op ")
    assert lines[1:3] == ["    tt.return %x, %x : i32, i32", "    ^"]
    assert "triton-ext-" not in str(error)
    assert capfd.readouterr() == ("", "")


def test_verify_points_at_the_text_of_an_edited_module():
    module = parse(GOOD, "kernel.ttgir")
    addition = next(op for op in module.walk() if op.name == "arith.addi")
    Builder.before(addition).parse('"odd.op"() : () -> ()')
    with pytest.raises(VerifyError) as caught:
        host.verify(module)
    assert str(caught.value).startswith("<edited kernel.ttgir>:3:")
    assert '    "odd.op"() : () -> ()' in str(caught.value).split("\n")


def test_verify_of_a_text_and_what_is_said_by_others(capfd):
    with pytest.raises(VerifyError, match=r"<module>:3:21: error: use of undeclared SSA value"):
        host.verify(GOOD.replace("%x, %x", "%z, %x"))
    host.verify(GOOD)
    os.write(2, b"still there\n")
    assert capfd.readouterr().err == "still there\n"

"""Command lines as LLVM's tools read them."""

from __future__ import annotations

import pytest
from triton_ext.passes import PassSpec, Pipeline
from triton_ext.tools.command_line import OPTIONS, CommandLineError, parse_arguments
from triton_ext.tools.mlir_options import REFUSED


def specs(*argv):
    return list(parse_arguments(argv).pipeline.specs())


@pytest.mark.parametrize("dash", ["-", "--"])
def test_passes_in_order_with_options(dash):
    found = specs("in.mlir", f"{dash}b", f"{dash}a=x=1 y=two", f"{dash}b={{x={{1 2}}}}")
    assert found == [
        PassSpec("b"),
        PassSpec("a", {"x": "1", "y": "two"}),
        PassSpec("b", {"x": "1 2"}),
    ]


def test_a_pipeline():
    pipeline = parse_arguments(["--pass-pipeline", "builtin.module(a{x},tt.func(b))"]).pipeline
    expected = (PassSpec("a", {"x": "true"}), Pipeline("tt.func", (PassSpec("b"),)))
    assert pipeline == Pipeline("builtin.module", expected)
    assert parse_arguments(["-pass-pipeline=builtin.module(a{x},tt.func(b))"]).pipeline == pipeline


def test_values():
    given = ["-o", "out", "-split-input-file", "--verify-diagnostics", "--verify-each=false", "in"]
    arguments = parse_arguments(given)
    assert arguments.output == "out"
    assert arguments.split_marker == "// -----"
    assert arguments.verify_diagnostics == "all"
    assert arguments.verify_each is False
    assert arguments.file == "in"
    arguments = parse_arguments(
        ["-o=out", "--split-input-file=// X", "-verify-diagnostics=only-expected", "-"]
    )
    assert (arguments.output, arguments.split_marker) == ("out", "// X")
    assert (arguments.verify_diagnostics, arguments.file) == ("only-expected", "-")


def test_an_optional_value_does_not_take_the_file():
    arguments = parse_arguments(["-split-input-file", "in.mlir"])
    assert arguments.file == "in.mlir"


def test_prints():
    arguments = parse_arguments(
        [
            "-b",
            "-c",
            "--mlir-print-ir-after",
            "a,b",
            "-mlir-print-ir-before-all",
            "--mlir-print-ir-after=c",
            "-a",
        ]
    )
    assert arguments.print_after == {"a", "b", "c"}
    assert arguments.print_before == {"*"}


def test_no_option_is_refused_and_accepted():
    assert not set(REFUSED) & set(OPTIONS)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--verify-each=maybe"], "takes true or false, found 'maybe'"),
        (["--verify-diagnostics=some"], "takes all or only-expected"),
        (["--pass-pipeline=a", "--pass-pipeline=b"], "given twice"),
        (["--host=none", "--pass-provider=host"], "leaves nothing"),
        (["--host=always", "--keep-comments"], "prints our text"),
        (["--host"], "needs a value"),
        (["-o", ""], "needs the name of a file, or - for standard output"),
        (["--o="], "needs the name of a file"),
        (["-o", "a", "-o=b"], "'-o=b' is given twice: 'a' and 'b'"),
    ],
)
def test_wrong_use(argv, said):
    with pytest.raises(CommandLineError, match=said):
        parse_arguments(argv)

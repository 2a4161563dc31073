"""--run-reproducer: which pipeline stands in a module's resources."""

from __future__ import annotations

import pytest
from triton_ext.errors import PipelineError
from triton_ext.passes.pipeline import parse_pipeline
from triton_ext.tools.command_line import CommandLineError, parse_arguments
from triton_ext.tools.reproducer import with_reproducer

MODULE = """\
module {
}
{-#
  external_resources: {
    other: { blob: "0x08000000", count: 3 },
    mlir_reproducer: {
      pipeline: "builtin.module(a{x=\\22y z\\22},tt.func(b))",
      disable_threading: true,
      verify_each: false
    }
  }
#-}
"""


def test_the_pipeline_and_the_options():
    arguments = parse_arguments(["--run-reproducer", "in.mlir"])
    changed = with_reproducer(arguments, MODULE)
    assert changed.pipeline == parse_pipeline("builtin.module(a{x='y z'},tt.func(b))")
    assert (changed.verify_each, changed.file) == (False, "in.mlir")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module {\n}\n",
        'module {\n} // mlir_reproducer: { pipeline: "a" }\n',
        MODULE.replace("mlir_reproducer", "my_reproducer"),
        'module attributes {a = "{-#"} {\n} // mlir_reproducer: {}\n',
        MODULE.replace("mlir_reproducer: {", "// mlir_reproducer: {\n my_reproducer: {"),
        MODULE.replace('blob: "0x08000000"', 'blob: "mlir_reproducer: {}"').replace(
            "    mlir_reproducer", "    my_reproducer"
        ),
    ],
)
def test_without_a_reproducer_the_command_line_stays(text):
    arguments = parse_arguments(["--run-reproducer", "-cse"])
    assert with_reproducer(arguments, text) == arguments


@pytest.mark.parametrize(
    "text",
    [
        MODULE.replace("mlir_reproducer:", '"mlir_reproducer" :'),
        MODULE.replace("pipeline:", '"pipeline":').replace("disable", "// ,\n disable"),
        'module attributes {a = "{-# mlir_reproducer: {} #-}"} {\n} // {-#\n' + MODULE,
    ],
)
def test_spellings_of_the_same_reproducer(text):
    changed = with_reproducer(parse_arguments(["--run-reproducer"]), text)
    assert changed.pipeline == parse_pipeline("builtin.module(a{x='y z'},tt.func(b))")
    assert not changed.verify_each


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("verify_each: false", "verify_each: false,", r"found '\}' in line 10, column 5"),
        ("pipeline:", "pipelin:", "expected 'pipeline', .*, found 'pipelin' in line 7, column 7"),
        (
            MODULE.splitlines()[6],
            "pipeline: cse,",
            "expected a string as the pipeline, found 'cse'",
        ),
        (MODULE.splitlines()[6], "pipeline: builtin.module(cse),", "expected a string as the pip"),
        (MODULE.splitlines()[6], "pipeline: 'cse',", "as the pipeline, found '"),
        (MODULE.splitlines()[6] + "\n", "", "expected an entry 'pipeline'"),
        ("verify_each: false", "verify_each: 0", "'true' or 'false' as 'verify_each', found '0'"),
        ("verify_each: false", 'pipeline: "b"', "expected one entry 'pipeline'"),
        ("mlir_reproducer:", "mlir_reproducer", r"expected ':', found '\{'"),
        ("mlir_reproducer: {", "mlir_reproducer: [", r"expected '\{', found '\['"),
        ("threading: true,", "threading: true", "expected ',' or '}', found 'verify_each'"),
        (MODULE[MODULE.index("      verify_each") :], "", "found 'the end'"),
    ],
)
def test_a_reproducer_that_cannot_be_read_is_refused(old, new, said):
    assert old in MODULE
    with pytest.raises(CommandLineError, match=said):
        with_reproducer(parse_arguments(["--run-reproducer"]), MODULE.replace(old, new))


@pytest.mark.parametrize(
    ("arguments", "text", "error", "said"),
    [
        (["-cse"], MODULE, CommandLineError, r"together with passes \('-cse'\)"),
        ([], MODULE * 2, CommandLineError, "more than one reproducer"),
        ([], MODULE.replace("tt.func(b)", "tt.func(b"), PipelineError, r"expected ',' or '\)'"),
    ],
)
def test_refused(arguments, text, error, said):
    with pytest.raises(error, match=said):
        with_reproducer(parse_arguments(["--run-reproducer", *arguments]), text)

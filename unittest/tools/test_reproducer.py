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
    ],
)
def test_without_a_reproducer_the_command_line_stays(text):
    arguments = parse_arguments(["--run-reproducer", "-cse"])
    assert with_reproducer(arguments, text) == arguments


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

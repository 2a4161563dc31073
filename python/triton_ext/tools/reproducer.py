"""``--run-reproducer``: the pipeline that stands in a module's resources.

MLIR writes it there when a pipeline fails, so that one file is enough to see the failure again::

    {-#
      external_resources: {
        mlir_reproducer: {
          pipeline: "builtin.module(cse)",
          disable_threading: true,
          verify_each: true
        }
      }
    #-}
"""

from __future__ import annotations

import re
from dataclasses import replace

from triton_ext.passes.pipeline import parse_pipeline
from triton_ext.strings import unquote
from triton_ext.tools.command_line import Arguments, CommandLineError

__all__ = ["with_reproducer"]

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_VALUE = rf"(?:{_STRING}|[\w.-]+)"
_REPRODUCER = re.compile(
    rf"\bmlir_reproducer\s*:\s*\{{(?P<entries>\s*\w+\s*:\s*{_VALUE}(?:\s*,\s*\w+\s*:\s*{_VALUE})*)\s*\}}"
)
_ENTRY = re.compile(rf"(\w+)\s*:\s*({_VALUE})")


def with_reproducer(arguments: Arguments, text: str) -> Arguments:
    """Returns a command line that runs the pipeline of a reproducer; without one, the same.

    Args:
        arguments: The command line.
        text: The input.

    Raises:
        CommandLineError: There are several reproducers, or passes in the command line as well.
        PipelineError: The pipeline cannot be read.
    """
    found = list(_REPRODUCER.finditer(text, max(text.find("{-#"), 0))) if "{-#" in text else []
    if not found:
        return arguments
    if len(found) > 1:
        raise CommandLineError("'--run-reproducer': the input has more than one reproducer")
    first = next(arguments.pipeline.specs(), None)
    if first is not None:
        raise CommandLineError(
            f"'--run-reproducer' cannot be used together with passes ('-{first.name}')"
        )
    entries = dict(_ENTRY.findall(found[0]["entries"]))
    changed = arguments
    if "pipeline" in entries:
        changed = replace(changed, pipeline=parse_pipeline(unquote(entries["pipeline"])))
    if "verify_each" in entries:
        changed = replace(changed, verify_each=entries["verify_each"] != "false")
    return changed

"""Tuning: measured choices of tile configurations, kept on disk and looked up by plans.

Every direction has a model that ranks configurations.  ``tune`` compiles the first few, measures
them, and keeps the fastest in a table that plans look at before they ask the model.
"""

from __future__ import annotations

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.tables import TableError, TuningWarning
from triton_ext.ops.tuning.collect import (
    Calls,
    JobError,
    Warmup,
    collect,
    parse_shape,
    record,
    warmup_steps,
)
from triton_ext.ops.tuning.measure import CompilePool
from triton_ext.ops.tuning.runs import Outcome, Report, candidates, tune
from triton_ext.ops.tuning.store import reload, use

__all__ = [
    "Calls", "Case", "CompilePool", "JobError", "Outcome", "Report", "TableError", "TuningWarning",
    "Warmup", "candidates", "collect", "parse_shape", "record", "reload", "tune", "use",
    "warmup_steps",
]  # fmt: skip

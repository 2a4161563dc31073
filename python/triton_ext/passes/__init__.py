"""The base class of passes, and everything that finds, configures and runs passes.

A pipeline is a text (:func:`parse_pipeline`); names in it are looked up in a registry
(:mod:`~triton_ext.passes.registry`), which knows the vendors' passes and those that other packages
offer through the entry-point group ``triton_ext.passes``; :class:`PassManager` runs it.
"""

from __future__ import annotations

from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext, Remark, Statistic
from triton_ext.passes.manager import PassManager, PassReport, PassTiming
from triton_ext.passes.pipeline import PassSpec, Pipeline, parse_pipeline
from triton_ext.passes.places import error_at

__all__ = [
    "Pass",
    "PassContext",
    "PassManager",
    "PassReport",
    "PassSpec",
    "PassTiming",
    "Pipeline",
    "Remark",
    "Statistic",
    "error_at",
    "parse_pipeline",
]

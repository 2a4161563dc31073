"""Options of ``mlir-opt`` that are refused, each with its reason.

``mlir-opt`` takes many options that no upstream test of Triton uses.  Unless they were known by
name, they would be taken for passes, and the error would be that there is no such pass.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

_BYTECODE = "modules are read and written as text; Triton's binding offers no bytecode"
_PRINTER = "modules are printed as they were read, or as Triton's binding prints them, whose flags "
_PRINTER += "cannot be set"
_ACTIONS = "Triton's binding offers neither MLIR's actions nor its debug counters"
_PLUGINS = "a C++ plugin fits one build of LLVM; a pass in Python comes with its package, see "
_PLUGINS += "docs/write-a-pass.md"
_CRASHES = "Triton writes a reproducer where TRITON_REPRODUCER_PATH says"

#: The reason by the name of the option.
REFUSED: Mapping[str, str] = {
    "emit-bytecode": _BYTECODE,
    "emit-bytecode-version": _BYTECODE,
    "elide-resource-data-from-bytecode": _BYTECODE,
    "mlir-print-op-generic": "operations are printed in the form that they were read in, or that "
    "Triton's binding prints, which has no generic one",
    "mlir-print-assume-verified": _PRINTER,
    "mlir-print-skip-regions": _PRINTER,
    "mlir-print-unique-ssa-ids": _PRINTER,
    "mlir-print-value-users": _PRINTER,
    "mlir-elide-elementsattrs-if-larger": _PRINTER,
    "mlir-elide-resource-strings-if-larger": _PRINTER,
    "mlir-print-elementsattrs-with-hex-if-larger": _PRINTER,
    "mlir-print-ir-tree-dir": "modules between passes go to standard error, not to files",
    "mlir-pass-pipeline-crash-reproducer": _CRASHES,
    "mlir-pass-pipeline-local-reproducer": _CRASHES,
    "mlir-output-format": "times and statistics are printed as text only",
    "mlir-diagnostic-verbosity-level": "errors, warnings and remarks are all printed, and compared "
    "under -verify-diagnostics",
    "mlir-very-unsafe-disable-verifier-on-parsing": "Triton's parser always verifies; --host=none "
    "--verify-each=false reads without",
    "no-implicit-module": "Triton's parser puts a module around what stands in none",
    "verify-roundtrip": "what Triton prints is not read again; run triton-opt over its output",
    "load-dialect-plugin": _PLUGINS,
    "load-pass-plugin": _PLUGINS,
    "irdl-file": "Triton's binding loads no dialects from IRDL",
    "log-actions-to": _ACTIONS,
    "profile-actions-to": _ACTIONS,
    "log-mlir-actions-filter": _ACTIONS,
    "mlir-debug-counter": _ACTIONS,
    "mlir-print-debug-counter": _ACTIONS,
    "mlir-enable-debugger-hook": _ACTIONS,
}

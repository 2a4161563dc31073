"""The base class of passes.

Valid IR in, valid IR out: a pass may rely on what ``Module.verify`` and the host check, and must
leave nothing behind that they refuse.  A pass that cannot do its work raises ``PassError`` at the
user's source line (:func:`~triton_ext.passes.error_at`); one that merely finds nothing to do
returns.

A pass is a frozen dataclass whose fields are its options::

    @dataclass(frozen=True, slots=True)
    class Pipeline(Pass):
        name: ClassVar[str] = "tritongpu-pipeline"
        num_stages: int = 3                      # tritongpu-pipeline{num-stages=3}

        def run(self, module: Module, context: PassContext) -> None:
            ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.errors import PipelineError
from triton_ext.ir import Module
from triton_ext.passes.context import PassContext
from triton_ext.passes.pipeline import is_pass_name

__all__ = ["Pass"]


@dataclass(frozen=True, slots=True)
class Pass(ABC):
    """A rewrite of a module; the fields of a subclass are its options.

    Every field needs a default.  Its name on the command line is that of the field with ``-`` for
    ``_``, or ``field(metadata={"option": "..."})``; its type is ``bool``, ``int``, ``float``,
    ``str``, a ``Literal`` of strings, a ``tuple[T, ...]`` of one of them, or ``T | None``.

    Attributes:
        name: As spelled in a pipeline and on the command line.
        anchor: Name of the operations that the pass runs on, ``"tt.func"`` for each function by
            itself; ``None`` for a pass that runs on whatever its pipeline is anchored on.
    """

    name: ClassVar[str]
    anchor: ClassVar[str | None] = "builtin.module"

    def __init_subclass__(cls, **named: object) -> None:
        """Refuses a name that no pipeline could have.

        Raises:
            PipelineError: ``name`` is not what a pipeline takes for one.
        """
        # By name: dataclass(slots=True) makes every class a second time.
        super(Pass, cls).__init_subclass__(**named)
        name = cls.__dict__.get("name", "unnamed")
        if isinstance(name, str) and not is_pass_name(name):
            raise PipelineError(
                f"'{cls.__name__}' cannot be named '{name}': expected a letter and then letters, "
                "digits, '-', '_' or '.', as pipelines have them"
            )

    @abstractmethod
    def run(self, module: Module, context: PassContext) -> None:
        """Rewrites ``module`` in place.

        Args:
            module: The module to rewrite.  Where the pass is anchored on another operation, it is
                the part of the module in that operation, which ``module.op`` is.
            context: Takes remarks and statistics.

        Raises:
            PassError: The module cannot be compiled this way.
        """

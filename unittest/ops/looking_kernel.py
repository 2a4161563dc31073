"""A stand-in for a kernel that a plan launches, for tests that look at the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["LookingKernel"]


class LookingKernel:
    """A launch through the front door compiles, one around it does not.

    Attributes:
        launches: A (door, grid, arguments by name) for each launch.
    """

    pre_run_hooks: tuple[object, ...] = ()

    def __init__(
        self,
        arg_names: Sequence[str],
        optional: Sequence[str] = (),
        launches: list[Any] | None = None,
    ) -> None:
        """Makes a stand-in.

        Args:
            arg_names: The parameters of the kernel.
            optional: Those that are ``None`` around the door if they were when it was compiled,
                or whose parts are.
            launches: A list to use, which other kernels also put their launches into.
        """
        self.arg_names = arg_names
        self.optional = optional
        self.launches = [] if launches is None else launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def front(*arguments: Any, **options: Any) -> Any:
            named = dict(zip(self.arg_names, arguments, strict=False)) | options
            self.launches.append(("front", grid, named))
            return {grid: self._around(grid, named)}

        return front

    def _around(self, grid: tuple[int, ...], compiled_for: dict[str, Any]) -> Any:
        def around(*arguments: Any) -> None:
            named = dict(zip(self.arg_names, arguments, strict=True))
            for name in self.optional:
                given, compiled = (
                    each[name] if isinstance(each[name], tuple) else (each[name],)
                    for each in (named, compiled_for)
                )
                assert [x is None for x in given] == [x is None for x in compiled]
            self.launches.append(("around", grid, named))

        return around

"""Which passes there are: names, and where their classes are.

Three sources.  The passes that vendors share stand in ``PASSES`` here, name to ``"module:class"``;
a vendor package lists its own in a table of that name.  Another package declares an entry point in
the group ``triton_ext.passes``::

    [project.entry-points."triton_ext.passes"]
    my-pass = "my_package.passes:MyPass"

Nothing of a pass is imported before the pass is asked for.  Asking for a name that two of them
claim is an error that names both: which of them runs must not depend on the order of installation.
Every other name stays usable.

A pass that is only in this package has the prefix ``triton-ext-``; a port of one of Triton's passes
has Triton's name.  A vendor package lists former names in ``ALIASES``, former name to name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from triton_ext import backends
from triton_ext.errors import PipelineError
from triton_ext.passes.base import Pass
from triton_ext.passes.options import near, options_of, with_options
from triton_ext.passes.pipeline import PassSpec

__all__ = [
    "GROUP",
    "PASSES",
    "Entry",
    "aliases",
    "build",
    "canonical",
    "entries",
    "lookup",
    "names",
    "refresh",
]

GROUP = "triton_ext.passes"

# Passes that are common to vendors, by their name in a pipeline.
PASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "allocate-shared-memory": ("triton_ext.passes.allocate_shared_memory:AllocateSharedMemory"),
        "test-buffer-region-alias": (
            "triton_ext.passes.print_buffer_region:PrintBufferRegionAlias"
        ),
        "test-print-alias": "triton_ext.passes.print_alias:PrintAlias",
        "test-print-alignment": "triton_ext.passes.print_alignment:PrintAlignment",
        "test-print-allocation": "triton_ext.passes.print_allocation:PrintAllocation",
        "test-print-buffer-region": "triton_ext.passes.print_buffer_region:PrintBufferRegion",
        "tritongpu-coalesce-async-copy": (
            "triton_ext.passes.coalesce_async_copy:CoalesceAsyncCopy"
        ),
        "triton-ext-verify-async": "triton_ext.passes.verify_async:VerifyAsync",
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a pass is.

    Attributes:
        name: Its name.
        target: ``"module:class"``.
        origin: Who offers it, for errors.
        clash: Another one that claims the name.
    """

    name: str
    target: str
    origin: str
    clash: Entry | None = None

    def load(self) -> type[Pass]:
        """Imports the class.

        Raises:
            PipelineError: It cannot be imported, is no pass, calls itself by another name, or has
                an option that no text can give; or two packages claim its name.
        """
        if self.clash is not None:
            raise PipelineError(
                f"two passes are named '{self.name}': '{self.target}' of {self.origin} and "
                f"'{self.clash.target}' of {self.clash.origin}",
                notes=("rename one of them, or uninstall one of the two packages",),
            )
        module, _, attribute = self.target.partition(":")
        try:
            loaded: Any = importlib.import_module(module)
            for part in attribute.split("."):
                loaded = getattr(loaded, part)
        except (Exception, SystemExit) as error:  # what a foreign module does when it is imported
            kind = "" if isinstance(error, ImportError | AttributeError) else type(error).__name__
            raise PipelineError(
                f"pass '{self.name}' of {self.origin} cannot be loaded from '{self.target}': "
                f"{': '.join(filter(None, [kind, str(error)]))}"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, Pass)):
            raise PipelineError(
                f"'{self.target}', which {self.origin} registers as pass '{self.name}', is not a "
                "subclass of triton_ext.passes.Pass"
            )
        if getattr(loaded, "name", None) != self.name:
            raise PipelineError(
                f"pass '{self.name}' of {self.origin} calls itself "
                f"'{getattr(loaded, 'name', None)}': the two names have to be equal"
            )
        options_of(loaded)  # refuses types that no option can have
        return loaded


@lru_cache(maxsize=1)
def entries() -> Mapping[str, Entry]:
    """Every pass by name, sorted."""
    found: dict[str, Entry] = {}
    common = (Entry(name, target, GROUP) for name, target in PASSES.items())
    for entry in [*common, *_of_vendors(), *_of_packages()]:
        known = found.setdefault(entry.name, entry)
        # One installation that is found on two ways is no clash.
        if known.target != entry.target and known.clash is None:
            found[entry.name] = replace(known, clash=entry)
    return MappingProxyType(dict(sorted(found.items())))


def refresh() -> None:
    """Looks for passes again at the next question: after a package was installed."""
    entries.cache_clear()
    importlib.invalidate_caches()


def names() -> tuple[str, ...]:
    """Returns the names of all passes, sorted, without former names."""
    return tuple(entries())


@lru_cache(maxsize=1)
def aliases() -> Mapping[str, str]:
    """Returns the present name of a pass for each former name."""
    found: dict[str, str] = {}
    for vendor in backends.VENDORS:
        if backends.folders(vendor):
            package = importlib.import_module(f"triton_ext.backends.{vendor}")
            found.update(getattr(package, "ALIASES", {}))
    return MappingProxyType(found)


def canonical(name: str) -> str:
    """Returns the present name of a pass; a name that is no former one stays as it is."""
    known = entries()
    return name if name in known else aliases().get(name, name)


def lookup(name: str) -> type[Pass]:
    """Returns the class of a pass.

    Raises:
        PipelineError: There is no pass of that name, or it cannot be loaded.
    """
    return _entry(PassSpec(name)).load()


def build(spec: PassSpec) -> Pass:
    """Makes the pass that a pipeline names, with its options.

    Raises:
        PipelineError: There is no such pass or option, or a value cannot be read; the error points
            at the place in the pipeline's text.
    """
    return with_options(_entry(spec).load(), spec)


def _entry(spec: PassSpec) -> Entry:
    known = entries()
    entry = known.get(canonical(spec.name))
    if entry is None:
        spec.fail(f"there is no pass '{spec.name}'", near(spec.name, known))
    return entry


def _of_vendors() -> Iterable[Entry]:
    for vendor in backends.VENDORS:
        if backends.folders(vendor):
            package = importlib.import_module(f"triton_ext.backends.{vendor}")
            table: Mapping[str, str] = getattr(package, "PASSES", {})
            for name, target in table.items():
                yield Entry(name, target, f"triton_ext.backends.{vendor}")


def _of_packages() -> Iterable[Entry]:
    import importlib.metadata  # slow to import, and a compile with our own passes only never asks

    for point in importlib.metadata.entry_points(group=GROUP):
        owner = point.dist.name if point.dist is not None else "an unknown package"
        yield Entry(point.name, point.value.replace(" ", ""), f"package '{owner}'")

"""The passes of ours that run by themselves in a compile, and the kernels that need them.

Which of them run is told by the printed form of a module, by what the installed Triton can do, and
by environment variables, which :mod:`triton_ext.plugin` names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from triton_ext import backends, host
from triton_ext.errors import SourceError, UnsupportedError
from triton_ext.markers import LIBRARY
from triton_ext.passes import Pass

__all__ = ["OwnPass", "host_has", "is_set", "own_for", "own_passes"]


@dataclass(frozen=True, slots=True)
class OwnPass:
    """A pass of ours that runs by itself behind TTGIR, for the kernels that need it.

    Attributes:
        vendor: Whose it is.
        export: Its name there.
        words: All of these stand in the printed form of every module that needs it.
        replaces: Environment variable that leaves the work to Triton's own pass if it is ``host``;
            empty where Triton has none.
        asked: Environment variable without which the pass does not run; empty for one that does.
        one_of: One of these stands there as well, if any are named.
        without: Not all of these stand there, if any are named.
        on: Capability of the hosts that it runs on; empty for all.
        not_on: Capability of the hosts that it does not run on; empty for none.
        screen: What the vendor exports under this name tells from the printed form whether a module
            that has the words needs the pass; empty where the words are enough.
        gluon_only: Whether it is for Gluon kernels, whose layouts a person wrote.
        options: Those of the pass, by the names of its fields.
    """

    vendor: str
    export: str
    words: tuple[str, ...]
    replaces: str = ""
    asked: str = ""
    one_of: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    on: str = ""
    not_on: str = ""
    screen: str = ""
    gluon_only: bool = False
    options: tuple[tuple[str, object], ...] = ()

    @property
    def way_out(self) -> str:
        """Setting that avoids an error of the pass; empty where there is none."""
        if self.replaces and self.gluon_only:
            return f"{self.replaces}=host leaves such copies as they are written"
        if self.replaces:
            return f"{self.replaces}=host leaves this to Triton's own pass"
        return f"{self.asked} asked for this check" if self.asked else ""

    def is_for(self, text: str, is_gluon: bool) -> bool:
        """Returns whether a module needs the pass."""
        if (self.gluon_only and not is_gluon) or not all(word in text for word in self.words):
            return False
        if self.one_of and not any(word in text for word in self.one_of):
            return False
        if self.without and all(word in text for word in self.without):
            return False
        try:
            return not self.screen or bool(backends.load(self.vendor, self.screen)(text))
        except SourceError as error:
            error.notes += (self.way_out,)
            raise

    def make(self) -> Pass:
        """The pass."""
        made: Pass = backends.load(self.vendor, self.export)(**dict(self.options))
        return made


_OWN: tuple[OwnPass, ...] = (
    OwnPass("nvidia", "lower-im2col", (LIBRARY,), on="im2col-copies"),
    # There the rest is done in LLVM IR.
    OwnPass("nvidia", "localize-im2col", (LIBRARY,), not_on="im2col-copies"),
    # In front of those that count the instructions of copies.  Triton has these passes for
    # @triton.jit alone, in the middle of the stage (docs/adr/0008).
    OwnPass(
        "nvidia",
        "coalesce-async-copy",
        ('ttg.target = "cuda:', "ttg.async_copy_global_to_local"),
        "TRITON_EXT_COALESCE",
        screen="has-narrow-copies",
        gluon_only=True,
        options=(("explicit_layouts", True),),
    ),
    OwnPass(
        "amd",
        "coalesce-async-copy",
        ('ttg.target = "hip:',),
        "TRITON_EXT_COALESCE",
        one_of=("ttg.async_copy_global_to_local", "amdg.buffer_load_to_local"),
        screen="has-narrow-copies",
        gluon_only=True,
        options=(("explicit_layouts", True),),
    ),
    # Kernels without any wait as well: theirs are missing.
    OwnPass(
        "amd",
        "verify-async-waits",
        (),
        asked="TRITON_EXT_VERIFY_WAITS",
        one_of=("async_", "amdg.buffer_load_to_local"),
        without=("cuda:", "ttng.init_barrier"),
    ),
    OwnPass(
        "nvidia",
        "verify-async-pass",
        ('ttg.target = "cuda:', "ttng.init_barrier"),
        asked="TRITON_EXT_VERIFY_WAITS",
    ),
    # Every release counts too high for some kernels, which then read LDS before the data arrived.
    OwnPass("amd", "update-async-wait-count", ('ttg.target = "hip:', "_wait"), "TRITON_EXT_WAITS"),
    # 3.8 never ends for some of them, and no release reserves all of the bytes of some.
    OwnPass("amd", "align-partitioned-shared", ("#ttg.partitioned_shared",), "TRITON_EXT_LDS"),
)


@lru_cache(maxsize=1)
def own_passes() -> tuple[OwnPass, ...]:
    """The passes of ours that run by themselves, as the environment was when they were first asked.

    What Triton can do as well is left to it where our result would be stored under its key.

    Raises:
        UnsupportedError: An environment variable has a value that means nothing.
    """
    return tuple(
        own
        for own in _OWN
        if (not own.replaces or _is_ours(own.replaces))
        and (not own.asked or is_set(own.asked))
        and (not own.on or host_has(own.on))
        and (not own.not_on or not host_has(own.not_on))
    )


def is_set(variable: str) -> bool:
    """Returns whether an environment variable is set to a true value.

    Raises:
        UnsupportedError: It says neither yes nor no.
    """
    value = os.environ.get(variable, "").lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise UnsupportedError(f"{variable}={value}: expected 1 or 0")


def own_for(stage: str, text: str, is_gluon: bool) -> tuple[OwnPass, ...]:
    """The passes of ours that a module needs."""
    if stage != "ttgir":
        return ()
    return tuple(own for own in own_passes() if own.is_for(text, is_gluon))


def _is_ours(variable: str) -> bool:
    """Returns whether our pass replaces the one of Triton that a variable names."""
    value = os.environ.get(variable, "ext")
    if value not in ("ext", "host"):
        raise UnsupportedError(
            f"{variable}={value}: expected 'ext' (the pass of triton-ext) or 'host' (Triton's own)"
        )
    return value == "ext" and host_has("stages-hook-key")


def host_has(capability: str) -> bool:
    """Returns whether the installed Triton has a capability."""
    return host.capabilities()[capability].available

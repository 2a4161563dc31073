"""Lists the operations, types and attributes of a Triton, as its own parser knows them.

A name that MLIR registers is a string of the library, so the strings of the library that start with
a dialect's name are candidates, and the parser says which of them it knows.  The library has others
of that form: names of attributes that modules carry (``ttg.num-warps``), constants that happen to
lie in front of a zero byte.  A name in the middle of a longer string is found as well, because
linkers merge strings that end alike.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from triton_ext.host.process import HostLibrary, HostProcess, find_library

DIALECTS = ("amdg", "tt", "ttg", "ttng")
#: Attributes are registered under this name and spelled with their dialect's.
_ENCODINGS = "triton.gpu"
_NAME = re.compile(rb"[a-z]+(?:\.[a-z0-9_]+)+(?=\0)")
_UNKNOWN = re.compile(r"is unknown|unknown +(?:type|attribute)|provides no (?:type|attribute) pars")


@dataclass(frozen=True, slots=True)
class HostDialects:
    """The names that a parser knows.

    Attributes:
        version: The Triton.
        operations: Names of operations, ``"ttg.local_load"``.
        types: Names of types, ``"ttg.memdesc"``.
        attributes: Names of attributes as they are spelled, ``"ttg.blocked"``.
        encodings: Names that encodings are registered under, ``"triton.gpu.blocked_encoding"``.
    """

    version: str
    operations: frozenset[str]
    types: frozenset[str]
    attributes: frozenset[str]
    encodings: frozenset[str]


def host_dialects() -> HostDialects:
    """Returns the names that the installed Triton knows.

    Raises:
        HostError: No Triton is installed.
    """
    library = find_library()
    names = frozenset(_strings(library))
    encodings = frozenset(name for name in names if name.startswith(_ENCODINGS))
    with HostProcess(library) as process:

        def knows(text: str) -> bool:
            result = process.run(text, "name.mlir")
            return not any(_UNKNOWN.search(d.message) for d in result.diagnostics)

        def spelled(sigil: str, candidates: Iterable[str]) -> frozenset[str]:
            form = f"module attributes {{t.a = {sigil}%s}} {{}}\n"
            return frozenset(name for name in candidates if knows(form % name))

        operations = frozenset(
            name for name in names - encodings if knows(f"module {{\n  {name}\n}}\n")
        )
        others = names - encodings - operations
        return HostDialects(
            version=library.version,
            operations=operations,
            types=spelled("!", others),
            attributes=spelled("#", others | {s for name in encodings for s in spellings(name)}),
            encodings=encodings,
        )


def spellings(encoding: str) -> tuple[str, ...]:
    """Spellings of an encoding that is registered as ``triton.gpu.NAME``."""
    name = encoding.removeprefix(f"{_ENCODINGS}.")
    short = "dot_op" if name == "dot_operand_encoding" else name.removesuffix("_encoding")
    return f"ttg.{short}", f"ttng.{name}"


def _strings(library: HostLibrary) -> Iterator[str]:
    """The strings of a library that start with the name of a dialect."""
    with (
        library.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for prefix in (*DIALECTS, _ENCODINGS):
            start = prefix.encode() + b"."
            at = data.find(start)
            while at >= 0:
                match = _NAME.match(data, at)
                if match is not None:
                    yield match[0].decode()
                at = data.find(start, at + 1)

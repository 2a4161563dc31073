"""The child process that runs Triton's passes: ``python child.py PARENT worker.py FD LIBRARY``.

It answers requests, one JSON object a line: read from standard input, written to the file
descriptor named by its argument.  Standard error is a file that the parent reads: after a request
it holds the output of the host during that request.

Only Triton's library is loaded, not its Python package: that takes 50 ms instead of 500.  If the
library aborts, only this process ends.

The library reads every file that a location names when it reports something there, to show the
line.  A device or a pipe would never end or never begin, so a module whose locations name one is
refused before the library sees it.  That covers the passes as well, whose handler of diagnostics
is Triton's own, and unlike a limit on time or memory it refuses no module for being large.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["main"]

# Values to call an adder with, by the type in its signature; which option each of its arguments
# sets is seen by changing one argument at a time.
_PROBES: dict[str, tuple[Any, Any]] = {
    "int": (2, 3),
    "bool": (False, True),
    "str": ("gfx950", "gfx942"),
    "float": (1.0, 2.0),
}
_ALLOW_UNREGISTERED = "_ZN4mlir11MLIRContext25allowUnregisteredDialectsEb"
# The handler's constructor: SourceMgr &, MLIRContext *, raw_ostream & and unique_function &&.
_NEW_HANDLER = (
    "_ZN4mlir26SourceMgrDiagnosticHandlerC1ERN4llvm9SourceMgrEPNS_11MLIRContextERNS1_11raw_ostreamE"
    "ONS1_15unique_functionIFbNS_8LocationEEEE"
)
_DELETE_HANDLER = "_ZN4mlir26SourceMgrDiagnosticHandlerD1Ev"
_NEW_MANAGER = "_ZN4llvm9SourceMgrC1Ev"
_DELETE_MANAGER = "_ZN4llvm9SourceMgrD1Ev"
_ERRS = "_ZN4llvm4errsEv"
# More than each of the handler, the source manager and the function has; zeros are an empty
# function.
_OBJECT_BYTES = 4096


def main() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    worker = _Worker(sys.argv[2], answers)
    for line in sys.stdin:
        request = json.loads(line)
        os.lseek(2, 0, os.SEEK_SET)
        os.ftruncate(2, 0)
        worker.request = request.pop("id")
        answer = getattr(worker, "do_" + request.pop("do"))(**request)
        worker.say(answer=answer)


class _Worker:
    def __init__(self, library: str, answers: Any) -> None:
        #: Number of the request that is being answered; every message carries it.
        self.request = 0
        self._answers = answers
        self._library = library
        loader = importlib.machinery.ExtensionFileLoader("libtriton", library)
        spec = importlib.util.spec_from_file_location("libtriton", library, loader=loader)
        if spec is None:
            raise ImportError(f"cannot load {library}")
        self._host: Any = importlib.util.module_from_spec(spec)
        loader.exec_module(self._host)

    def say(self, **message: Any) -> None:
        """Writes a message.

        ``answer``: the request is done.  Before that: ``at``, what is begun now; ``state``, the
        module as it is now; ``seconds``, how long the pass manager ran that is done.
        """
        self._answers.write(json.dumps({"id": self.request, **message}) + "\n")
        self._answers.flush()

    def do_probe(self, skip: list[str]) -> dict[str, Any]:
        """Finds every adder of a pass, its textual name, and which options its arguments set."""
        context = self._context()
        found = []
        for path in self._adders(self._host.passes, "passes"):
            found.append(path)
        for vendor in ("nvidia", "amd"):
            module = getattr(self._host, vendor, None)
            if module is not None and hasattr(module, "passes"):
                found += self._adders(module.passes, f"{vendor}.passes")
        answer = []
        for path in found:
            if path in skip:
                continue
            self.say(at=path)
            for types in self._signatures(path):
                answer.append({"path": path, "types": types, **self._probe(context, path, types)})
        return {"adders": answer}

    def do_run(
        self,
        text: str,
        path: str,
        steps: list[dict[str, Any]],
        allow_unregistered: bool,
        one_by_one: bool,
        failed_state: bool,
        to_llvm_ir: bool = False,
    ) -> dict[str, Any]:
        """Parses and verifies a text, runs passes over it, and prints it.

        Args:
            text: The module.
            path: A file to write it to: the host's parser reads files only.
            steps: ``{"path": adder, "arguments": [...]}`` for each pass.
            allow_unregistered: Whether operations of unknown dialects are accepted.
            one_by_one: Give each pass a pass manager of its own, and say the module in front of
                the first and behind each.
            failed_state: Answer with the module that a failed pass left.
            to_llvm_ir: Answer with LLVM IR as the text of the module.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        context = self._context()
        refused = allow_unregistered and not self._allow_unregistered(context)
        # A failing pass would print the operation to file descriptor 2 as well.
        context.printOpOnDiagnostic(False)
        notes = False
        try:
            with self._printed_notes(context) as notes:
                module = self._host.ir.parse_mlir_module(path, context)
        except RuntimeError as error:
            return {
                "failed": "parse",
                "said": str(error),
                "unregistered_refused": refused,
                "notes": notes,
            }
        module.context = context
        if one_by_one:
            self.say(state=_plain(module))
        groups = [[step] for step in steps] if one_by_one else [steps] if steps else []
        for index, group in enumerate(groups):
            self.say(at=index)
            manager = self._host.ir.pass_manager(context)
            for step in group:
                self._adder(step["path"])(manager, *step["arguments"])
            start = time.perf_counter()
            try:
                manager.run(module, "triton-opt")
            except RuntimeError as error:
                left = _plain(module) if failed_state else ""
                return {"failed": "pass", "said": str(error), "index": index, "left": left}
            self.say(seconds=time.perf_counter() - start)
            if one_by_one:
                self.say(state=_plain(module))
        if not to_llvm_ir:
            return {"failed": None, "text": str(module), "plain": _plain(module)}
        try:
            llvm = self._host.llvm
            return {
                "failed": None,
                "text": str(llvm.to_module(module, llvm.context())),
                "plain": "",
            }
        except RuntimeError as error:
            return {"failed": "translation", "said": str(error)}

    def _context(self) -> Any:
        context = self._host.ir.context()
        self._host.ir.load_dialects(context)
        for vendor in ("nvidia", "amd"):
            load = getattr(getattr(self._host, vendor, None), "load_dialects", None)
            if load is not None:
                load(context)
        return context

    def _allow_unregistered(self, context: Any) -> bool:
        """Calls the setter of MLIR's context, which no binding offers.

        The setter is an exported symbol of the library; the context's address is read from the
        binding's object, whose layout is that of pybind11 or nanobind.
        """
        setter = getattr(ctypes.CDLL(self._library), _ALLOW_UNREGISTERED, None)
        address = _address_of(context)
        if setter is None or address is None:
            return False
        setter.argtypes = (ctypes.c_void_p, ctypes.c_bool)
        setter.restype = None
        setter(address, True)
        return True

    @contextlib.contextmanager
    def _printed_notes(self, context: Any) -> Iterator[bool]:
        """Has diagnostics printed with their notes while the module is read; says whether it can.

        Only its runs of passes have a handler of diagnostics; without one, MLIR prints errors
        alone.  Like the setter above, constructors and destructors are exported symbols.
        """
        library = ctypes.CDLL(self._library)
        names = (_NEW_MANAGER, _NEW_HANDLER, _DELETE_HANDLER, _DELETE_MANAGER, _ERRS)
        functions: list[Any] = [getattr(library, name, None) for name in names]
        address = _address_of(context)
        if None in functions or address is None:
            yield False
            return
        new_manager, new_handler, delete_handler, delete_manager, errs = functions
        for function, count in zip(functions, (1, 5, 1, 1, 0), strict=True):
            function.argtypes = (ctypes.c_void_p,) * count
            function.restype = ctypes.c_void_p if function is errs else None
        buffers = [ctypes.create_string_buffer(_OBJECT_BYTES) for _ in range(3)]
        handler, manager, show = (ctypes.addressof(buffer) for buffer in buffers)
        new_manager(manager)
        new_handler(handler, manager, address, errs(), show)
        try:
            yield True
        finally:
            # The context knows of the handler, and the handler of the manager.
            delete_handler(handler)
            delete_manager(manager)

    def _adders(self, module: Any, path: str) -> list[str]:
        """Every function whose first argument is a pass manager."""
        found = []
        for name in sorted(dir(module)):
            value = getattr(module, name)
            if type(value) is type(module):
                found += self._adders(value, f"{path}.{name}")
            elif self._signatures(f"{path}.{name}"):
                found.append(f"{path}.{name}")
        return found

    def _adder(self, path: str) -> Any:
        value = self._host
        for name in path.split("."):
            value = getattr(value, name)
        return value

    def _signatures(self, path: str) -> list[list[str]]:
        """Types of the arguments behind the pass manager, for each overload of an adder."""
        found = []
        for match in re.finditer(r"\w+\(([^()]*)\) -> None", self._adder(path).__doc__ or ""):
            types = [part.partition(":")[2].strip() for part in match[1].split(",")]
            types = [_type_word(word) for word in types if word]
            if types and types[0] == "manager":
                found.append(types[1:])
        return found

    def _probe(self, context: Any, path: str, types: list[str]) -> dict[str, Any]:
        if any(word not in _PROBES for word in types):
            return {"problem": f"takes an argument of a type that is not known ({types})"}
        base = [_PROBES[word][0] for word in types]
        varied = []
        try:
            printed = self._printed(context, path, base)
            for index, word in enumerate(types):
                values = [*base[:index], _PROBES[word][1], *base[index + 1 :]]
                varied.append(self._printed(context, path, values))
        except (RuntimeError, TypeError, ValueError) as error:
            return {"problem": str(error).partition("\n")[0]}
        return {"printed": printed, "varied": varied}

    def _printed(self, context: Any, path: str, arguments: list[Any]) -> str:
        manager = self._host.ir.pass_manager(context)
        self._adder(path)(manager, *arguments)
        return str(manager.get_pipeline_str())


def _plain(module: Any) -> str:
    return str(module.str_nodebug())


def _type_word(text: str) -> str:
    if "pass_manager" in text:
        return "manager"
    return "int" if "SupportsInt" in text else text


def _address_of(instance: Any) -> int | None:
    """The C++ object behind an object of a binding; ``None`` for a layout that is not known.

    nanobind: a 32-bit offset behind the object's head, relative to the object (then a bit says
    whether the value itself or a pointer to it is there).  pybind11: a pointer behind the head.
    """
    start = id(instance) + object.__basicsize__
    metaclass = type(type(instance))
    if metaclass.__name__.startswith("nb_type"):
        offset = ctypes.c_int32.from_address(start).value
        state = ctypes.c_uint32.from_address(start + 4).value
        direct = bool(state >> 2 & 1)
        place = id(instance) + offset
        return place if direct else ctypes.c_void_p.from_address(place).value
    if metaclass.__name__ == "pybind11_type":
        return ctypes.c_void_p.from_address(start).value
    return None


if __name__ == "__main__":
    main()

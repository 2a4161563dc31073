"""``triton-ext doctor``: what is installed, what works here, what does not, and why.

Every probe is guarded: a broken driver or a half-installed torch is a line of the report, never a
traceback.  The report says only what a probe saw.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from triton_ext import __version__, backends
from triton_ext.errors import TritonExtError
from triton_ext.tools import selftest
from triton_ext.tools.files import write

__all__ = ["SUMMARY", "Finding", "Report", "add_arguments", "examine", "run"]

SUMMARY = "print what is installed, what works here and what does not, and why"

# First compute capability whose TMA unit has the im2col mode.
_FIRST_CAPABILITY = (9, 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: What was looked at.
        good: Whether it can be used; ``None`` for a mere fact.
        text: What was found, or why it cannot be used.
    """

    topic: str
    good: bool | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings of :func:`examine`.

    Attributes:
        facts: What is installed.
        capabilities: What the installed Triton offers.
        works: What a user can do here.
        usable: Whether the package can be used at all.
        unconfirmed: Capabilities that no probe confirmed, on a release that is not tested.
        selftest: What was compiled, if that was asked for.
    """

    facts: tuple[Finding, ...]
    capabilities: tuple[Finding, ...]
    works: tuple[Finding, ...]
    usable: bool
    unconfirmed: tuple[str, ...] = ()
    selftest: tuple[selftest.Outcome, ...] = ()

    @property
    def good(self) -> bool:
        """True if the package can be used and every kernel of the selftest is right."""
        return self.usable and not any(tested.status == "no" for tested in self.selftest)


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor} (sm_{major}{minor})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--selftest",
        action="store_true",
        help="compile kernels for each target, look at their code, and run one on the GPU if there "
        "is one; status 1 if something fails that this Triton should do",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; returns 0 if the package can be used and what was tested works, else 1."""
    report = examine()
    if arguments.selftest and report.usable:
        report = with_selftest(report)
    text = json.dumps(asdict(report), indent=2) + "\n" if arguments.json else render(report)
    return 0 if write(text, "-") and report.good else 1


def with_selftest(report: Report) -> Report:
    """Returns a report with what a selftest found."""
    facts = {fact.topic: fact for fact in report.facts}
    on_gpu = next(work for work in report.works if work.topic.startswith("triton_ext.ops"))
    skipped = {name: facts[name].text for name in ("numpy", "torch") if not facts[name].good}
    if not on_gpu.good:
        skipped["gpu"] = on_gpu.text
    # Both run on numpy as well.
    if "numpy" in skipped:
        skipped["torch"] = skipped["numpy"]
    try:
        tested = selftest.run_checks(skipped)
    except TritonExtError as error:
        tested = (selftest.Outcome("all", "selftest", "no", str(error)),)
    return replace(report, selftest=tested)


def examine() -> Report:
    """Looks at everything; raises nothing that a broken installation can cause."""
    host = _guarded("triton", _examine_host)
    host_is_good = host.good is True
    capabilities = _examine_capabilities() if host_is_good else ()
    extension = _guarded("C extension", _examine_extension)
    driver = (
        _guarded("CUDA driver", _examine_driver)
        if host_is_good
        else Finding("CUDA driver", False, "cannot be looked for without Triton")
    )
    gpus, gpu = _examine_gpu()
    torch, numpy = _examine_package("torch"), _examine_package("numpy")
    facts = (
        Finding("triton-ext", None, f"{__version__}, {_folder('triton_ext')}"),
        Finding("python", None, f"{platform.python_version()}, {sys.executable}"),
        host,
        *_examine_files(host_is_good),
        _guarded("plugin", _examine_plugin),
        *_examine_native_plugins(),
        extension,
        driver,
        gpu,
        torch,
        numpy,
    )
    by_name = {c.topic: c for c in capabilities}
    im2col, interpreter = by_name.get("im2col", host), by_name.get("interpreter", host)
    needs = {
        "triton": host,
        "im2col": im2col,
        "interpreter": interpreter,
        "C extension": extension,
        "CUDA driver": driver,
        "GPU": _gpu_with_im2col(gpus, gpu),
        "torch": torch,
        "numpy": numpy,
    }
    works = (
        _work("compile for sm_90 and sm_100", needs, ("im2col",), "no GPU is needed for this"),
        _work(
            "run in the interpreter, triton_ext.ops too",
            needs,
            ("interpreter", "numpy", "torch"),
            "TRITON_INTERPRET=1",
        ),
        _work("launch on this GPU", needs, ("im2col", "C extension", "CUDA driver", "GPU")),
        _work(
            "triton_ext.ops (convolutions for torch) on this GPU",
            needs,
            ("im2col", "torch", "C extension", "CUDA driver", "GPU"),
        ),
    )
    return Report(
        facts=facts,
        capabilities=capabilities,
        works=works,
        usable=host_is_good,
        unconfirmed=_unconfirmed() if host_is_good else (),
    )


def render(report: Report) -> str:
    """Returns the report as text."""
    sections = (
        ("Installed", report.facts),
        ("What this Triton offers", report.capabilities),
        ("What works here", report.works),
    )
    lines: list[str] = []
    for title, findings in sections:
        if not findings:
            continue
        lines += ["", title] if lines else [title]
        width = max(len(finding.topic) for finding in findings)
        mark = {True: "yes", False: "no ", None: "   "}
        lines += [f"  {mark[f.good]}  {f.topic:<{width}}  {f.text}".rstrip() for f in findings]
    if report.unconfirmed:
        lines += [
            "",
            "Not confirmed: this release is not tested, and these leave nothing to probe;",
            "they are taken to be as in the newest release that is tested; --selftest tries some",
            *(f"  {name}" for name in report.unconfirmed),
        ]
    if report.selftest:
        lines += ["", "Selftest", *_selftest_lines(report.selftest)]
    return "\n".join(lines) + "\n"


def _selftest_lines(tested: tuple[selftest.Outcome, ...]) -> list[str]:
    words = {"yes": "yes", "no": "NO ", "absent": "no ", "skipped": "-  "}
    width = max(len(each.feature) for each in tested)
    lines = [
        f"  {words[each.status]}  {each.target:<7}  {each.feature:<{width}}  {each.text}"
        for each in tested
    ]
    failed = sum(each.status == "no" for each in tested)
    worked = sum(each.status == "yes" for each in tested)
    lines.append(f"  {worked} work, {failed} should work and do not")
    return lines


def _work(
    what: str, needs: dict[str, Finding], wanted: tuple[str, ...], remark: str = ""
) -> Finding:
    missing = dict.fromkeys(needs[name].topic for name in wanted if needs[name].good is not True)
    if missing:
        return Finding(what, False, f"see above: {', '.join(missing)}")
    return Finding(what, True, remark)


def _guarded(topic: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except TritonExtError as error:
        return Finding(topic, False, str(error))
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return Finding(topic, False, f"{type(error).__name__}: {error}")


def _folder(package: str) -> pathlib.Path:
    return pathlib.Path(str(importlib.import_module(package).__file__)).parent


def _examine_host() -> Finding:
    from triton_ext.host import SUPPORTED, detect

    host = detect()
    (first, last) = (".".join(map(str, release)) for release in SUPPORTED)
    tested = "tested" if host.tested else f"not tested with triton-ext, which covers {first}-{last}"
    return Finding("triton", True, f"{host.version} ({tested}), {_folder('triton')}")


def _examine_files(host_is_good: bool) -> tuple[Finding, ...]:
    from triton_ext.host import changed_files

    changed = changed_files() if host_is_good else ()
    if not changed:
        return ()
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    text = (
        f"{', '.join(changed[:3])}{more}: not what pip installed; changed by hand or by the "
        "distribution, or a half-finished upgrade: pip install --force-reinstall --no-deps triton"
    )
    return (Finding("triton's files", False, text),)


def _examine_capabilities() -> tuple[Finding, ...]:
    from triton_ext.host import capabilities

    try:
        table = capabilities()
    except (TritonExtError, ImportError, AttributeError) as error:
        return (Finding("capabilities", False, f"cannot be probed: {error}"),)
    return tuple(
        Finding(c.name, c.available, c.summary if c.available else c.reason) for c in table.values()
    )


def _unconfirmed() -> tuple[str, ...]:
    from triton_ext.host import capabilities, detect

    try:
        table = {} if detect().tested else capabilities()
    except (TritonExtError, ImportError, AttributeError):
        return ()  # The section of capabilities says so.
    return tuple(c.name for c in table.values() if c.available and not c.probed)


def _examine_plugin() -> Finding:
    from triton_ext import plugin

    chained = plugin.chain()
    lost = [link for link in chained if not link.is_reached]
    if lost:
        found = "; ".join(f"{link.in_front} in {link.title}" for link in lost)
        return Finding(
            "plugin",
            False,
            f"installed, but others took its place without calling it: {found}; the next compile "
            "puts it in front of them, and so does triton_ext.install()",
        )
    if not chained:
        plugin.install()
        chained = plugin.chain()
        plugin.uninstall()
    others = [
        f"{who} {where} in {link.title}"
        for link in chained
        for who, where in ((link.in_front, "in front"), (link.behind, "behind"))
        if who
    ]
    beside = f"; beside others: {', '.join(others)}" if others else ""
    return Finding("plugin", True, f"installs; importing triton_ext.language does it{beside}")


def _examine_native_plugins() -> tuple[Finding, ...]:
    """C++ plugins, each of which is built for one release of Triton; most people have none."""
    found = [Finding("native plugin", None, path) for path in _plugin_paths()]
    try:
        version = importlib.metadata.version("triton-utlx")
        of_triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return tuple(found)
    release = ".".join(of_triton.split(".")[:2])
    good = version.startswith(f"{release}.")
    text = "works beside triton-ext, in any order of imports"
    if not good:
        text = f"is for another triton than {of_triton}: pip install 'triton-utlx~={release}.0'"
    return (*found, Finding("triton-utlx", good, f"{version}, {text}"))


def _plugin_paths() -> list[str]:
    # Triton reads it from 3.7 on.
    return [path for path in os.environ.get("TRITON_PLUGIN_PATHS", "").split(os.pathsep) if path]


def _examine_extension() -> Finding:
    name = "triton_ext.backends.nvidia.backend._driver"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return Finding(
            "C extension",
            False,
            f"does not load ({error}); reinstall triton-ext where a C compiler and the Python "
            "headers are installed",
        )
    return Finding("C extension", True, str(module.__file__))


def _examine_driver() -> Finding:
    status = backends.load("nvidia", "driver_status")()
    if status.problem is not None:
        return Finding("CUDA driver", False, status.problem)
    if status.version is None:
        return Finding("CUDA driver", False, f"{status.library} does not tell its version")
    version = f"{status.version // 1000}.{status.version % 1000 // 10}"
    return Finding("CUDA driver", True, f"{status.library}, CUDA {version}")


def _examine_package(name: str) -> Finding:
    try:
        version = importlib.metadata.version(name)
        importlib.import_module(name)
    except importlib.metadata.PackageNotFoundError:
        # torch pins a Triton of its own and would replace the one that is here.
        behind = ", then the Triton you want again" if name == "torch" else ""
        return Finding(name, False, f"not installed: pip install {name}{behind}")
    except (ImportError, OSError, RuntimeError) as error:
        return Finding(name, False, f"{version} is installed, but does not load: {error}")
    return Finding(name, True, version)


def _examine_gpu() -> tuple[tuple[_Gpu, ...], Finding]:
    """Asks torch if it is there and sees a GPU, else the driver itself."""
    problems = []
    for probe in (_gpus_of_torch, _gpus_of_driver):
        try:
            gpus = probe()
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            problems.append(str(error))
            continue
        if gpus:
            return gpus, Finding("GPU", True, "; ".join(map(str, gpus)))
    return (), Finding("GPU", False, problems[-1] if problems else "none found")


def _gpus_of_torch() -> tuple[_Gpu, ...]:
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return ()
    return tuple(
        _Gpu(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count())
    )


def _gpus_of_driver() -> tuple[_Gpu, ...]:
    try:
        name_of_library = str(backends.load("nvidia", "driver_status")().library)
    except ImportError:
        name_of_library = "libcuda.so.1"  # Without Triton nobody can have asked for another one.
    try:
        library = ctypes.CDLL(name_of_library)
    except OSError as error:
        raise OSError(f"none: there is no CUDA driver ({error})") from error

    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"none: {name} says error {status}")

    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h.
    attributes = (75, 76)
    number = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(number))
    gpus = []
    for index in range(number.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, len(name), device)
        capability = []
        for attribute in attributes:
            call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            capability.append(value.value)
        gpus.append(_Gpu(name.value.decode(errors="replace"), (capability[0], capability[1])))
    return tuple(gpus)


def _gpu_with_im2col(gpus: tuple[_Gpu, ...], finding: Finding) -> Finding:
    if gpus and all(gpu.capability < _FIRST_CAPABILITY for gpu in gpus):
        return Finding("GPU of sm_90 or newer", False, finding.text)
    return finding

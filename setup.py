"""Build of the C extension and the mapping of third_party/* to triton_ext.backends.*.

Everything else is declared in pyproject.toml.
"""

from __future__ import annotations

import pathlib
import sysconfig

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).parent
VENDORS = ("nvidia", "amd")


class Abi3Wheel(bdist_wheel):
    """Tags the wheel cp310-abi3: one file per platform serves every Python from 3.10 on."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "cp310", "abi3", platform


def packages() -> tuple[list[str], dict[str, str]]:
    """Returns the package names and the folder of each package that is not under python/."""
    names = find_packages("python")
    folders = {"": "python"}
    for vendor in VENDORS:
        name = f"triton_ext.backends.{vendor}"
        if not (ROOT / "third_party" / vendor / "__init__.py").exists():
            continue
        folders[name] = f"third_party/{vendor}"
        names.append(name)
        names.extend(f"{name}.{sub}" for sub in find_packages(f"third_party/{vendor}"))
    return names, folders


# Without the GIL there is no limited API (until 3.15), so that build is tied to its Python.
limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
names, folders = packages()
setup(
    packages=names,
    package_dir=folders,
    ext_modules=[
        Extension(
            "triton_ext.backends.nvidia.backend._driver",
            sources=[
                f"third_party/nvidia/backend/{name}.c"
                for name in ("driver", "launch_binding", "prepared_launch", "tensor_map")
            ],
            depends=[
                f"third_party/nvidia/backend/{name}.h"
                for name in ("launch_binding", "prepared_launch", "tensor_map")
            ],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if limited_api else [],
            # No path of the build in the file: two builds give the same bytes.
            extra_compile_args=[
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-fvisibility=hidden",
                "-g0",
                f"-ffile-prefix-map={ROOT.resolve()}=.",
            ],
            libraries=["dl"],
            py_limited_api=limited_api,
        )
    ],
    cmdclass={"bdist_wheel": Abi3Wheel} if limited_api else {},
)

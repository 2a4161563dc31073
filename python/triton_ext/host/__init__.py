"""All differences between Triton releases: detection, capabilities, and patch points.

Nothing outside this package compares a version number or reaches into Triton's private names.
"""

from __future__ import annotations

from triton_ext.host.capabilities import Capability, capabilities, features, require
from triton_ext.host.detect import SUPPORTED, Host, HostError, changed_files, detect
from triton_ext.host.module import verify

__all__ = [
    "SUPPORTED",
    "Capability",
    "Host",
    "HostError",
    "capabilities",
    "changed_files",
    "detect",
    "features",
    "require",
    "verify",
]

"""Families of kernels: a module each, with what it takes, its choice and its times."""

from __future__ import annotations

__all__: list[str] = []

"""Few-channel implicit GEMM: fprop over fewer than 16 bytes of channels, gathered from x."""

from __future__ import annotations

__all__: list[str] = []

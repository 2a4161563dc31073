"""What tuning has found, kept on disk, and the look-up that plans make.

It imports no plan, so that plans can import it; measuring is ``triton_ext.ops.tuning``.
"""

from __future__ import annotations

__all__: list[str] = []

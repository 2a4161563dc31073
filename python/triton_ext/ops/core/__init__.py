"""What every convolution kernel shares on the host: the device, the case, the choice."""

from __future__ import annotations

__all__: list[str] = []

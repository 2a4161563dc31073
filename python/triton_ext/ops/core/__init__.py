"""Shared parts of ``ops`` on the host: case, device, planner, launcher, dispatch cache."""

"""Typed views of ``amdg`` operations."""

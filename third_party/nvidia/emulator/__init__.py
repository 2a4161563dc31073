"""Hopper's asynchronous units in the emulator (:mod:`triton_ext.emulator`)."""

"""The tensor data mover in the emulator (:mod:`triton_ext.emulator`)."""

"""Analyses of AMD's asynchronous operations, wait counts and LDS."""

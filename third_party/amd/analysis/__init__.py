"""Analyses of AMD operations: what they become, and what is in flight behind them."""

"""Benchmarks, one driver: ``python -m benchmarks <case> [options]`` from the root of the checkout.

Not installed.  Every case checks its results before it times anything, and prints the machine, the
versions and the formula beside the numbers.  The method is described in ``docs/performance.md``.
"""

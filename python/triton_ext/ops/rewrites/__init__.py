"""Rewrites: a case as another case that other families compute."""

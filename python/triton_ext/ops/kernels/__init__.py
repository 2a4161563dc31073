"""Device code of the families."""

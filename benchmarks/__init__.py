"""Side-by-side measurements: every figure is taken from our side and from its peer in the same run."""

"""Side-by-side measurements: every figure is measured on our side and on its peer in the same run."""

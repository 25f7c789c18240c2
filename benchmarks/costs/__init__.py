"""What the broker's promises cost, a promise a module; `benchmarks/upkeep.py` runs them all."""

"""What the broker's promises cost, one module per promise; `benchmarks/upkeep.py` runs them all."""

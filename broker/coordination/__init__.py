"""Which brokers are live, which lead, which topics exist. `local.py` is the single broker's version, kept next to its logs."""

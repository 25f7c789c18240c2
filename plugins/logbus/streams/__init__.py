"""What is computed beside the load: hourly aggregates over event hours, and streams: aggregates, rows and joins of what arrives,
in epochs that the ledger chains, each proven against the loaded hour.
"""

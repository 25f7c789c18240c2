"""Streams: aggregates computed as records arrive, in epochs that the ledger chains, and proven against the loaded hour."""

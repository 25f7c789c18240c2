"""Streams: what arrives is counted in seconds, in epochs that the ledger chains, and proven equal to the loaded hour."""

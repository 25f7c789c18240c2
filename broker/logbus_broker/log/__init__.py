"""Bytes on disk: the partition log with its segments and sparse indexes, recovery, retention, and the data directory around
them."""

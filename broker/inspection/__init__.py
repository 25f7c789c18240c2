"""Inspects stored files, changes nothing: verify a data directory, print a segment. Commands, not part of a running broker."""

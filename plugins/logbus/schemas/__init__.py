"""Schemas of records: how values name theirs, how they are decoded by it, and a registry that keeps them."""

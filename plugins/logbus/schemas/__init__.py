"""Schemas of records: how a value names its schema, values decoded by it, and a registry that keeps schemas."""

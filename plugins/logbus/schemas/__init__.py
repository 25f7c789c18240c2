"""Schemas of records: how a value names its schema, what a registry knows of it, and values decoded by it."""

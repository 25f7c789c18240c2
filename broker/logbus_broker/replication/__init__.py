"""Replication: each partition on several brokers, one of which leads it."""

"""Hooks: they turn Airflow connections into what the ledger and the loads need."""

"""Airflow connections turned into what the ledger and the loads need."""

"""What the Airflow user interface shows of ledger and broker: pages, and the JSON beside them, below /logbus."""

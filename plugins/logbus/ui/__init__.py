"""What the Airflow user interface shows of the ledger: read-only pages below /logbus."""

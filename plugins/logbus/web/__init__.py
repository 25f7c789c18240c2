"""What Airflow's user interface shows of ledger and broker: pages, and their data as JSON, below /logbus."""

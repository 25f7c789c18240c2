"""Everything that answers HTTP: what Airflow's user interface shows of ledger and broker (pages, and their data as JSON, below
/logbus), the exporter, and the schema registry."""

"""The whole platform on one machine: embedded PostgreSQL, broker and Airflow as supervised child processes."""

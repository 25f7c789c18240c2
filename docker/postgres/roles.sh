#!/usr/bin/env bash
# Two roles, each the owner of one database and of nothing else: Airflow's, and the warehouse with its ledger. One leaked password
# (a DAG may read Airflow's connections) does not give access to the other database, and neither role is a superuser.
# Run by PostgreSQL's image when its volume is empty. Passwords are passed by environment, never on a command line.
set -euo pipefail
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv airflow_password LOGBUS_AIRFLOW_PASSWORD
\getenv warehouse_password LOGBUS_WAREHOUSE_PASSWORD
create role airflow login password :'airflow_password';
create role logbus login password :'warehouse_password';
create database airflow owner airflow;
create database logbus owner logbus;
revoke connect, temporary on database airflow, logbus from public;
SQL

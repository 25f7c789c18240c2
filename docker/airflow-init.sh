#!/usr/bin/env bash
# Creates what Airflow's components need before they start: the databases' roles, Airflow's tables, the ledger, the pool, the
# connections, the users. Can be run again at any time; secrets are passed by environment, that of the broker in a file.
set -euo pipefail

# The roles' passwords are in a file for as long as this takes: a command line is not for secrets.
passwords=$(mktemp)
trap 'rm -f "$passwords"' EXIT
cat >"$passwords" <<ROLES
airflow=$LOGBUS_AIRFLOW_PASSWORD
logbus_loader=$LOGBUS_WAREHOUSE_PASSWORD
logbus_reader=$LOGBUS_READER_PASSWORD
logbus_ui=$LOGBUS_UI_PASSWORD
ROLES
LOGBUS_WAREHOUSE_URL=$LOGBUS_POSTGRES_URL logbus roles --airflow-database airflow --passwords "$passwords" --execute

airflow db migrate
logbus airflow setup --master "$LOGBUS_SPARK_MASTER"
logbus ledger upgrade

# Two users, each with its own password. For more than a handful use an auth manager with groups; Airflow documents them.
umask 077
python - "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE" <<'PYTHON'
import json, os, sys

users = {"admin": os.environ["LOGBUS_ADMIN_PASSWORD"], "viewer": os.environ["LOGBUS_VIEWER_PASSWORD"]}
with open(sys.argv[1], "w") as file:
    json.dump(users, file)
PYTHON
echo "ready: the components may start"

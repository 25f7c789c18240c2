#!/usr/bin/env bash
# What has to be there before Airflow's components start: its tables, the ledger, the pool, the connections, the
# users. May run again at any time; everything secret comes by environment.
set -euo pipefail

airflow db migrate
logbus airflow setup --bootstrap-server "$LOGBUS_BOOTSTRAP_SERVER" --master "$LOGBUS_SPARK_MASTER"
logbus ledger upgrade

# Two users, each with a password of its own. For more than a handful take an auth manager with groups; Airflow documents them.
umask 077
python - "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE" <<'PYTHON'
import json, os, sys

users = {"admin": os.environ["LOGBUS_ADMIN_PASSWORD"], "viewer": os.environ["LOGBUS_VIEWER_PASSWORD"]}
with open(sys.argv[1], "w") as file:
    json.dump(users, file)
PYTHON
echo "ready: the components may start"

#!/usr/bin/env bash
# Writes random secrets for docker-compose.airflow.yml to .env (mode 600), which Compose reads. Existing values stay: the
# database keeps the password it was created with. Needs nothing but a shell.
set -euo pipefail
file=${1:-$(dirname "$0")/../.env}
umask 077
touch "$file"
chmod 600 "$file"

hex() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
password() { hex | head -c 24; }
fernet_key() { head -c 32 /dev/urandom | base64 | tr -d '\n' | tr '+/' '-_'; }

add() { # NAME VALUE, unless the name is set already
  grep -q "^$1=" "$file" || printf '%s=%s\n' "$1" "$2" >>"$file"
}

[ -n "${PROFILE:-}" ] && sed -i '/^COMPOSE_PROFILES=/d' "$file"
add COMPOSE_PROFILES "${PROFILE:-single}" # single or cluster: one broker, or three and three ZooKeepers
add LOGBUS_POSTGRES_PASSWORD "$(password)"
add LOGBUS_AIRFLOW_PASSWORD "$(password)"
add LOGBUS_WAREHOUSE_PASSWORD "$(password)"
add LOGBUS_READER_PASSWORD "$(password)"
add LOGBUS_UI_PASSWORD "$(password)"
add LOGBUS_ADMIN_PASSWORD "$(password)"
add LOGBUS_VIEWER_PASSWORD "$(password)"
add LOGBUS_GRAFANA_PASSWORD "$(password)"
add LOGBUS_JWT_SECRET "$(hex)$(hex)"
add LOGBUS_API_SECRET_KEY "$(hex)"
add LOGBUS_SPARK_SECRET "$(hex)"
add LOGBUS_FERNET_KEY "$(fernet_key)"
add LOGBUS_ALERT_WEBHOOK "http://localhost:9/set-LOGBUS_ALERT_WEBHOOK-in-.env" # nothing listens there

grep -q "^LOGBUS_ALERT_WEBHOOK=http://localhost:9/" "$file" && echo "alerts are not sent anywhere yet: set LOGBUS_ALERT_WEBHOOK in $file"
echo "secrets are in $file: LOGBUS_ADMIN_PASSWORD is Airflow's (user admin), LOGBUS_GRAFANA_PASSWORD Grafana's (user admin)"

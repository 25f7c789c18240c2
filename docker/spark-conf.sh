#!/usr/bin/env bash
# Runs a command with Spark's settings for this platform: what master, worker, drivers and executors send each other is
# authenticated with LOGBUS_SPARK_SECRET, and encrypted. The secret is in a file that only this account reads, and no longer in
# the environment: Spark would take it from a command line too, which others can read.
set -euo pipefail
umask 077
mkdir -p "$SPARK_CONF_DIR"
fresh=$(mktemp "$SPARK_CONF_DIR/.defaults.XXXXXX")
cat >"$fresh" <<SETTINGS
spark.authenticate true
spark.authenticate.secret $LOGBUS_SPARK_SECRET
spark.network.crypto.enabled true
spark.ui.killEnabled false
SETTINGS
mv "$fresh" "$SPARK_CONF_DIR/spark-defaults.conf" # at once: another program may be reading it
exec env -u LOGBUS_SPARK_SECRET "$@"

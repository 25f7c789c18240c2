#!/usr/bin/env bash
# Ends the stack in a directory through the process that holds its lock; that process ends last, and then the kernel frees the lock.
set -euo pipefail
home=$1
if [ ! -f "$home/lock" ] || flock --nonblock "$home/lock" true; then
  echo "nothing runs in $home"
  exit 0
fi
kill -TERM "$(cat "$home/lock")"
flock --timeout 60 "$home/lock" true || { echo "it still runs after a minute: see $home/run" >&2; exit 1; }
echo "ended; what was stored stays in $home"

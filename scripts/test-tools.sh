#!/usr/bin/env bash
# Tests talk to the broker with kcat too. Where it can be installed without asking, it is; elsewhere those tests say why they skip.
command -v kcat >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing kcat for the tests ..." >&2
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kcat; } >/dev/null 2>&1
fi
command -v kcat >/dev/null 2>&1 || echo "kcat is not here (Debian: apt-get install kcat): its tests will be skipped" >&2
exit 0

#!/usr/bin/env bash
# Tests also use the broker with kcat, open the pages in Chromium, press Tab in zsh and fish, and check the alert rules and alert routing with Prometheus' own tools. If these can be
# installed without asking, they are fetched; otherwise those tests report why they are skipped. Prometheus is only unpacked (into .tools/): not installed, and no service starts.
cd "$(dirname "$0")/.." || exit 0
tools=.tools/prometheus
has_kcat() { command -v kcat >/dev/null 2>&1; }
has_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1
has_shells() { command -v zsh && command -v fish; } >/dev/null 2>&1
has_prometheus() {
  [ -x $tools/usr/bin/promtool ] && [ -x $tools/usr/bin/amtool ] || { command -v promtool && command -v amtool; } >/dev/null 2>&1
}
has_kcat && has_chromium && has_shells && has_prometheus && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "fetching kcat, Chromium, zsh, fish and Prometheus for the tests ..." >&2
  apt-get update -qq >/dev/null 2>&1
  has_kcat || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kcat >/dev/null 2>&1
  has_chromium || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1
  has_shells || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends zsh fish >/dev/null 2>&1
  has_prometheus || {
    mkdir -p $tools && (cd $tools && apt-get download -qq prometheus prometheus-alertmanager && for each in *.deb; do dpkg -x "$each" .; done && rm -f ./*.deb)
  } >/dev/null 2>&1
fi
has_kcat || echo "kcat is not here (Debian: apt-get install kcat): its tests will be skipped" >&2
has_chromium || echo "Chromium is not here (Debian: apt-get install chromium): its tests will be skipped" >&2
has_shells || echo "zsh or fish is not here (Debian: apt-get install zsh fish): their tests will be skipped" >&2
has_prometheus || echo "promtool or amtool is not here (Debian: apt-get install prometheus prometheus-alertmanager): their tests will be skipped" >&2
exit 0

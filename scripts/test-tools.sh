#!/usr/bin/env bash
# Programs that some tests use: kcat, Chromium, zsh and fish, and Prometheus' own tools. What is missing is fetched without asking where that is
# possible (as root, with apt-get), and only once: .tools/fetched remembers the attempt, `make clean` forgets it. Tests of a program that is not
# here are skipped and say so. Prometheus is only unpacked (into .tools/): not installed, and no service starts.
cd "$(dirname "$0")/.." || exit 0
prometheus=.tools/prometheus
attempted=.tools/fetched
has() { for each in "$@"; do command -v "$each" >/dev/null 2>&1 || return 1; done; }
has_chromium() { has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome; }
has_prometheus() { { [ -x $prometheus/usr/bin/promtool ] && [ -x $prometheus/usr/bin/amtool ]; } || has promtool amtool; }
# The shell of Chromium without a screen takes two thirds of the CPU that the whole browser takes.
has kcat zsh fish chromium-headless-shell && has_prometheus && exit 0

if [ ! -e $attempted ] && [ "$(id -u)" = 0 ] && has apt-get; then
  echo "fetching kcat, Chromium, zsh, fish and Prometheus for the tests, this once ..." >&2
  wanted=()
  for each in kcat zsh fish chromium-headless-shell; do has "$each" || wanted+=("$each"); done
  {
    apt-get update -qq
    # One by one if not together: a program that is not to be had keeps none of the others away.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" ||
      for each in "${wanted[@]}"; do DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$each"; done
    has_chromium || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
    has_prometheus || {
      mkdir -p $prometheus
      (cd $prometheus && apt-get download -qq prometheus prometheus-alertmanager && for each in *.deb; do dpkg -x "$each" .; done && rm -f ./*.deb)
    }
  } >/dev/null 2>&1
  mkdir -p .tools && touch $attempted
fi
has kcat || echo "kcat is not here (Debian: apt-get install kcat): its tests will be skipped" >&2
has_chromium || echo "Chromium is not here (Debian: apt-get install chromium-headless-shell): its tests will be skipped" >&2
has zsh fish || echo "zsh or fish is not here (Debian: apt-get install zsh fish): their tests will be skipped" >&2
has_prometheus || echo "promtool or amtool is not here (Debian: apt-get install prometheus prometheus-alertmanager): their tests will be skipped" >&2
exit 0

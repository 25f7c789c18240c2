#!/usr/bin/env bash
# Programs that some tests use: kcat, Chromium, zsh and fish, Prometheus' own tools, rsyslog and syslog-ng. What is missing is fetched without asking
# where that is possible (as root, with apt-get), and only once: .tools/fetched remembers the attempt until this file changes; `make clean` forgets it.
# Tests of a program that is not here are skipped and say so. Of servers the packages are only unpacked (into .tools/unpacked, where the tests look
# first): not installed, and no service starts.
cd "$(dirname "$0")/.." || exit 0
unpacked=.tools/unpacked
attempted=.tools/fetched
PATH=$PWD/$unpacked/usr/bin:$PWD/$unpacked/usr/sbin:$PATH
has() { for each in "$@"; do command -v "$each" >/dev/null 2>&1 || return 1; done; }
has_chromium() { has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome; }
has_servers() { has promtool amtool rsyslogd syslog-ng; }
servers=(prometheus prometheus-alertmanager rsyslog rsyslog-kafka libestr0 libfastjson4 liblognorm5 librdkafka1
  syslog-ng-core syslog-ng-mod-rdkafka libivykis0 libnet1 libpcre3 libwrap0)
# The shell of Chromium without a screen takes two thirds of the CPU that the whole browser takes.
has kcat zsh fish chromium-headless-shell && has_servers && exit 0

if [ ! "$attempted" -nt scripts/test-tools.sh ] && [ "$(id -u)" = 0 ] && has apt-get; then
  echo "fetching kcat, Chromium, zsh, fish, Prometheus, rsyslog and syslog-ng for the tests, this once ..." >&2
  wanted=()
  for each in kcat zsh fish chromium-headless-shell; do has "$each" || wanted+=("$each"); done
  {
    apt-get update -qq
    # One by one if not together: a program that is not to be had keeps none of the others away.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" ||
      for each in "${wanted[@]}"; do DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$each"; done
    has_chromium || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
    has_servers || {
      mkdir -p $unpacked
      (cd $unpacked && { apt-get download -qq "${servers[@]}" || for each in "${servers[@]}"; do apt-get download -qq "$each"; done
        for each in *.deb; do dpkg -x "$each" .; done
        rm -f ./*.deb; })
    }
  } >/dev/null 2>&1
  mkdir -p .tools && touch $attempted
fi
has kcat || echo "kcat is not here (Debian: apt-get install kcat): its tests will be skipped" >&2
has_chromium || echo "Chromium is not here (Debian: apt-get install chromium-headless-shell): its tests will be skipped" >&2
has zsh fish || echo "zsh or fish is not here (Debian: apt-get install zsh fish): their tests will be skipped" >&2
has promtool amtool || echo "promtool or amtool is not here (Debian: apt-get install prometheus prometheus-alertmanager): their tests will be skipped" >&2
has rsyslogd syslog-ng || echo "rsyslogd or syslog-ng is not in $unpacked (Debian: rsyslog-kafka, syslog-ng-mod-rdkafka): their tests will be skipped" >&2
exit 0

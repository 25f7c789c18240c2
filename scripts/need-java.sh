#!/usr/bin/env bash
# Spark needs Java 17 or newer: fails with a clear message if it is missing.
set -u
java=java
[ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
version=$("$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1)
if [ -z "$version" ]; then
  echo "error: Java 17 or newer is needed (Spark runs on it) and was not found." >&2
elif [ "$version" -lt 17 ]; then
  echo "error: Java 17 or newer is needed (Spark runs on it); $("$java" -version 2>&1 | head -n 1) was found." >&2
else
  exit 0
fi
echo "       Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to one." >&2
exit 1

#!/usr/bin/env bash
# One server of a ZooKeeper quorum: zookeeper.sh NUMBER DIRECTORY ADDRESS:PORT SERVER...
# ADDRESS:PORT is for clients; each SERVER, in the order of their numbers, is HOST:QUORUM_PORT:ELECTION_PORT. The jars are Spark's.
set -euo pipefail
number=$1 directory=$2 clients=$3
shift 3
mkdir -p "$directory"
echo "$number" >"$directory/myid"
{
  printf '%s\n' "dataDir=$directory" "clientPortAddress=${clients%:*}" "clientPort=${clients##*:}" tickTime=2000 initLimit=10 syncLimit=5
  printf '%s\n' admin.enableServer=false 4lw.commands.whitelist=srvr autopurge.snapRetainCount=3 autopurge.purgeInterval=24
  each=0
  for server in "$@"; do printf 'server.%s=%s\n' $((each += 1)) "$server"; done
} >"$directory/zoo.cfg"
jars=$(python -c 'import pyspark; print(pyspark.__path__[0])')/jars
exec java -Xmx256m -XX:+UseSerialGC -cp "$jars/*" org.apache.zookeeper.server.quorum.QuorumPeerMain "$directory/zoo.cfg"

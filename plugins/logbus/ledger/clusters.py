"""Whose topic is it? A wrong broker has a topic of the same name, with another id: that is no topic made again.

The cluster's id is noted with the pipeline when it freezes for the first time, and again by a rebase. It is only asked for where
something does not fit, so a cluster that gets another id by itself (a new controller's disk) stops nothing.
"""

from __future__ import annotations

from sqlalchemy import Connection, update

from logbus.errors import AnotherCluster
from logbus.kafka.topics import OffsetLog
from logbus.ledger import schema
from logbus.ledger.rows import Row


def refuse_another_cluster(row: Row, log: OffsetLog) -> None:
    """`row`: the pipeline's. Nothing is said where one of the two ids is not known."""
    known = row["cluster_id"]
    found = log.cluster_id() if known else None
    if found is not None and found != known:
        raise AnotherCluster(
            f"this is another cluster: pipeline {row['name']} is on topic {row['topic']} of cluster {known}, and the broker that "
            f"answers is of {found}. Name the right one by --bootstrap-server (or LOGBUS_BOOTSTRAP_SERVERS, or the connection). "
            f"If the topic has moved for good, `logbus pipeline rebase {row['name']} --other-cluster` begins anew on it"
        )


def remember(connection: Connection, row: Row, cluster_id: str | None) -> None:
    """Notes the cluster of a pipeline of which none is known."""
    mine = (schema.pipeline.c.name == row["name"], schema.pipeline.c.cluster_id.is_(None))
    connection.execute(update(schema.pipeline).where(*mine).values(cluster_id=cluster_id))

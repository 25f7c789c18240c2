"""`logbus exporter`: lag, windows, topics and groups for Prometheus. Stops on SIGTERM and Ctrl-C.

It starts whether or not broker and warehouse are up: `logbus_up` shows which is down, and its metrics return when it does.
Nothing is created or changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import click

from logbus.cli import endings, options, output
from logbus.web.exporter import Limits, MetricsServer, PipelineCollector, make_sources

PORT_DEFAULT = 9308  # kafka_exporter's, whose names these are


@click.command("exporter")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--allow-unauthenticated", is_flag=True, help="Listen where others can connect; nobody is asked for a login.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT_DEFAULT, show_default=True, help="Port; 0 for any free one.")
@options.warehouse_option
@options.with_client
@click.option("--cluster-name", help="Value of the label cluster_name; by default the cluster's id.")
@click.option("--topic-filter", default=".*", show_default=True, help="Pattern of the topics to show, as with kafka_exporter.")
@click.option("--group-filter", default=".*", show_default=True, help="Pattern of the consumer groups to show.")
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 300),
    default=Limits().deadline_seconds,
    show_default=True,
    help="Seconds within which a scrape is answered; below Prometheus' scrape_timeout.",
)
@click.option(
    "--max-age",
    type=click.FloatRange(0, 300),
    default=Limits().max_age_seconds,
    show_default=True,
    help="Seconds for which scrapers share a reading.",
)
def command(
    host: str,
    port: int,
    allow_unauthenticated: bool,
    warehouse_url: str,
    config: Mapping[str, Any],
    deadline: float,
    max_age: float,
    **chosen: Any,
) -> None:
    """Serve lag, windows, topics and groups to Prometheus at /metrics."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    limits = Limits(deadline_seconds=deadline, max_age_seconds=max_age)
    sources = make_sources(warehouse_url, config, options.clock, limits, **chosen)
    collector, registry, stop = PipelineCollector(sources, limits), CollectorRegistry(), threading.Event()
    registry.register(collector)
    ProcessCollector(registry=registry)
    endings.set_at_signals(stop)
    server = MetricsServer(host, port, registry, collector.health, allow_unauthenticated=allow_unauthenticated)
    output.echo(f"serving {server.url}")
    server.run_until(stop)

"""Reading a broker's metrics as Prometheus would."""

from __future__ import annotations

from benchmarks.processes import free_port
from tests.support.broker import LogbusBroker
from tests.support.exporting import fetch


def metrics_settings() -> dict[str, str]:
    """Broker settings for metrics on a free port."""
    return {"logbus.metrics.listener": f"http://127.0.0.1:{free_port()}"}


def metrics_port(broker: LogbusBroker) -> int:
    return int(broker.settings["logbus.metrics.listener"].rpartition(":")[2])


def get(broker: LogbusBroker, path: str) -> str:
    return fetch(f"http://127.0.0.1:{metrics_port(broker)}{path}")


def scrape(broker: LogbusBroker) -> dict[str, float]:
    """Every sample by its name and labels."""
    lines = [line for line in get(broker, "/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def connections(broker: LogbusBroker) -> int:
    return int(
        next(
            value
            for name, value in scrape(broker).items()
            if name.startswith("kafka_server_socket_server_metrics_connection_count")
        )
    )

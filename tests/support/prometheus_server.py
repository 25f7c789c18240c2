"""A real Prometheus with targets on this machine, to evaluate expressions of dashboards and alerts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from logbus.cli.processes import Program, Supervisor
from logbus.waiting import wait_until

from benchmarks.processes import free_port
from tests.support.exporting import fetch
from tests.support.programs import program_or_skip


class PrometheusServer:
    """Queries the server over HTTP, as a dashboard does."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; raises an HTTP error for an invalid query."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        return json.loads(fetch(f"{self._url}/api/v1/{path}{query}"))["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query: `metric` with its labels, `value` as a pair of time and text."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def health(self) -> dict[str, str]:
        """The health of each job's target; empty while the server starts."""
        try:
            return {one["labels"]["job"]: one["health"] for one in self.ask("targets")["activeTargets"]}
        except OSError:
            return {}


@contextmanager
def prometheus(directory: Path, targets: Mapping[str, str], *rule_files: Path) -> Iterator[PrometheusServer]:
    """A server that scrapes `targets` (host and port by job) every two seconds; yielded once all of them are up."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        program_or_skip("prometheus"),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    program = Program(name="prometheus", command=command, environment={}, directory=directory, working_directory=directory)
    supervisor, server, expected = Supervisor(), PrometheusServer(port), dict.fromkeys(targets, "up")
    try:
        process = supervisor.start(program)
        wait_until(lambda: server.health() == expected, what="Prometheus", processes=[process])
        yield server
    finally:
        supervisor.end()

"""`logbus exporter` as a process, and the samples of a scrape of it (or of anything else)."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS
from logbus.web.exporter import Limits, PipelineCollector, make_sources
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import processes

PATIENT = Limits(deadline_seconds=PATIENCE_SECONDS, max_age_seconds=0.0)
HASTY = Limits(deadline_seconds=2.0, max_age_seconds=0.0)  # when a source does not answer

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def samples(text: str) -> Samples:
    """Every sample by name and labels."""
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def scrape(url: str, bootstrap: str, limits: Limits = PATIENT, **options: str) -> Samples:
    """One scrape of an exporter in this process."""
    return samples(generate_latest(registry(url, bootstrap, limits, **options)).decode())


def registry(url: str, bootstrap: str, limits: Limits = PATIENT, **options: str) -> CollectorRegistry:
    """The registry that an exporter serves."""
    made = CollectorRegistry()
    sources = make_sources(url, {"bootstrap.servers": bootstrap}, lambda: datetime.now(UTC), limits, **options)
    made.register(PipelineCollector(sources, limits))
    return made


def value(found: Samples, name: str, **labels: str) -> float | None:
    """The one sample of that name whose labels include these; None if there is none."""
    values = [number for (one, has), number in found.items() if one == name and labels.items() <= dict(has).items()]
    assert len(values) <= 1, f"{name} {labels}: {values}"
    return values[0] if values else None


def label_names(found: Samples) -> dict[str, set[str]]:
    """By name, the labels of its samples."""
    names: dict[str, set[str]] = {}
    for name, labels in found:
        names.setdefault(name, set()).update(key for key, _ in labels)
    return names


@contextmanager
def running_exporter(directory: Path, url: str, bootstrap: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its address; stopped at the end of the block."""
    words = ("exporter", "--bootstrap-server", bootstrap, *options)
    with running_server(directory, *words, environment={"LOGBUS_WAREHOUSE_URL": url}) as started:
        yield started


@contextmanager
def running_server(
    directory: Path, *words: str, environment: Mapping[str, str] = {}
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A command that listens on `--port`, and its address; stopped at the end of the block."""
    port, log_path = processes.free_port(), directory / f"{words[0]}.log"
    command = [sys.executable, "-m", "logbus", *words, "--port", str(port)]
    process = processes.start(command, log_path=log_path, env={"PATH": "/usr/bin", **environment}, cwd=directory)
    try:
        processes.wait_until_listening(port, process, log_path=log_path)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        processes.stop(process)

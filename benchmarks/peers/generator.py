"""The Java load generators of load/: compiled on the spot against a peer's own client library, one JVM per run.

Each prints at its end, in one line of JSON, how many records took how many seconds, or the percentiles of a latency.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS

from benchmarks import processes
from benchmarks.peers.java import ToolFailed
from benchmarks.peers.maven import Jars, java, javac
from benchmarks.processes import Missing

SOURCES = Path(__file__).parent / "load"
_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")  # as for Kafka's own tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The time from sending a record until it is received."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenerator:
    """One compiled generator: `main_class` on its class path, aimed at `address`."""

    main_class: str
    class_path: str
    address: str
    settings: tuple[str, ...] = ()  # name=value, for Kafka's clients

    @classmethod
    def compiled(cls, main_class: str, jars: Jars, *, address: str, into: Path) -> LoadGenerator:
        """Compiles into the caller's folder; Missing if there is no compiler."""
        sources = [str(SOURCES / f"{name}.java") for name in ("Report", main_class)]
        command = [javac(), "-nowarn", "-cp", jars.class_path(), "-d", str(into), *sources]
        done = processes.run(command, seconds_max=PATIENCE_SECONDS)
        if done.returncode != 0:
            raise Missing(f"{main_class} does not compile here: {done.stderr[-500:].strip()}")
        return cls(main_class=main_class, class_path=f"{into}:{jars.class_path()}", address=address)

    def rate(self, verb: str, target: str, *, records: int, record_bytes: int) -> float:
        """Records per second of one run."""
        return records_per_second(self._run(verb, target, records, record_bytes))

    def latency(self, target: str, *, records: int, record_bytes: int) -> Latency:
        return latency_of(self._run("latency", target, records, record_bytes))

    def _run(self, verb: str, target: str, records: int, record_bytes: int) -> str:
        words = [verb, self.address, target, str(records), str(record_bytes), *self.settings]
        command = [java(), *_FLAGS, "-cp", self.class_path, self.main_class, *words]
        done = processes.run(command, seconds_max=PATIENCE_SECONDS)
        if done.returncode != 0:
            raise ToolFailed(f"{self.main_class} {' '.join(words)}: status {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout


def records_per_second(output: str) -> float:
    """From `{"records": 1000, "seconds": 0.25}`."""
    said = _last_line(output)
    if not said["seconds"]:
        raise ToolFailed(f"a load generator measured nothing: {said}")
    return float(said["records"]) / float(said["seconds"])


def latency_of(output: str) -> Latency:
    """From `{"p50_ms": 1.5, "p99_ms": 4.0}`."""
    said = _last_line(output)
    return Latency(p50_ms=float(said["p50_ms"]), p99_ms=float(said["p99_ms"]))


def _last_line(output: str) -> dict[str, float]:
    try:
        said: dict[str, float] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        raise ToolFailed(f"a load generator ended without its figures: {output[-300:]!r}") from None
    return said

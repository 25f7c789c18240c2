"""A long unattended run: a failure costs only its own rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace

from rich.console import Console

from benchmarks.contest import Contest
from benchmarks.figures import Figure, figure
from benchmarks.loads import FULL, QUICK, Scale
from benchmarks.paper import _guarded


def quiet() -> Console:
    return Console(file=io.StringIO())


def breaks_after_one_figure(scale: Scale, console: Console) -> Iterator[Figure]:
    yield figure("measured", "s", ours=[1.0])
    raise KeyError("our own mistake")


def test_a_part_that_breaks_keeps_what_it_measured_and_is_not_held():
    measured, broken = _guarded("against Kafka", breaks_after_one_figure, QUICK, quiet())
    assert (measured.figure, measured.held) == ("measured", None)
    assert (broken.figure, broken.held, broken.note) == ("against Kafka", False, "KeyError: 'our own mistake'")


def test_a_server_that_has_ended_is_not_asked_again_and_says_its_last_words(tmp_path):
    log = tmp_path / "server.out"
    log.write_text("fatal: no space left on device\n")
    ended = SimpleNamespace(server=SimpleNamespace(alive=False, name="Kafka", log_path=log))
    goes_on = SimpleNamespace(server=SimpleNamespace(alive=True))
    running = Contest(present={"a": goes_on, "b": ended}, missing={"c": "no `mvn` on PATH"}, scale=FULL, console=quiet())
    measured = running.measure("load", lambda side, number: number, ("a", "b", "c"))
    assert measured["a"].rounds == [0, 1, 2]
    assert (measured["b"].rounds, measured["b"].reason) == ([], "Kafka has ended: fatal: no space left on device")
    assert measured["c"].reason == "no `mvn` on PATH"

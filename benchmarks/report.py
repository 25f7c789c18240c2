"""`--docs`: writes a benchmark's figures into its measured part of docs/benchmarks.md.

Those of the paper are also drawn, as its figures 4 and 5, in docs/figures/. The page around the measured parts is written by
hand: settings, what is equal and what is not.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import Figure, cells
from benchmarks.loads import Scale
from benchmarks.peers.maven import java
from benchmarks.plot import Bar, Panel, svg
from benchmarks.processes import Missing
from benchmarks.sides import ACTIVEMQ, KAFKA, RABBITMQ, RABBITMQ_STREAM

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = "benchmarks.md", "figures/paper.svg"
BEGIN, END = "<!-- {name}: begin -->", "<!-- {name}: end -->"
PAPER = "paper"
# Those that have no rounds, because one run takes so long.
ONE_RUN = {"sizes": "One load each", "topics": "One run", "minutes": "Medians over the windows of one run"}
_QUEUE_PRODUCER, _QUEUE_CONSUMER = "producer, our batch 50, acks=1, their own client", "consumer, their own client"
_BARS = (
    ("producer", "batch 50, acks=1", "producer, batch 50, acks=1", KAFKA),
    ("producer", "batch 1, acks=1", "producer, batch 1, acks=1", KAFKA),
    ("producer", "", _QUEUE_PRODUCER, RABBITMQ),
    ("producer", "", _QUEUE_PRODUCER, RABBITMQ_STREAM),
    ("producer", "", _QUEUE_PRODUCER, ACTIVEMQ),
    ("consumer", "", "consumer", KAFKA),
    ("consumer", "", _QUEUE_CONSUMER, RABBITMQ),
    ("consumer", "", _QUEUE_CONSUMER, RABBITMQ_STREAM),
    ("consumer", "", _QUEUE_CONSUMER, ACTIVEMQ),
)  # panel, way of producing, figure, peer


def write(name: str, figures: Sequence[Figure], scale: Scale, docs: Path = DOCS) -> Path:
    """Replaces the benchmark's measured part of the page and, for the paper, draws the plot."""
    page, plot = docs / PAGE, docs / PLOT
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no place for {name}: it lacks the marks {begin} and {end}")
    if name == PAPER:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(svg(panels(figures)))
    page.write_text(f"{before}{begin}\n\n{measured_part(name, figures, scale)}\n{end}{after}")
    return page


def measured_part(name: str, figures: Sequence[Figure], scale: Scale) -> str:
    """The table, what is missing from it, and where and when it was measured."""
    share = "" if scale.share == 1 else f", only {scale.share:.0%} of the records: not a measurement"
    rounds = ONE_RUN.get(name, f"Medians of {scale.rounds} rounds in turns")
    machine = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {_machine()}. {rounds}{share}."
    notes = dict.fromkeys(f"- {one.against}: {one.note}" for one in figures if one.note)
    plot = [f"![Producer and consumer throughput and broker CPU]({PLOT})", ""] if name == PAPER else []
    return "\n".join([machine, "", *plot, table(figures), *notes, ""])


def table(figures: Sequence[Figure]) -> str:
    """A Markdown table of all figures."""
    head = ("figure", "logbus", "peer", "ratio", "unit", "target", "held", "against")
    rows = [head, ("---", "---:", "---:", "---:", "---", "---", "---", "---"), *(cells(one) for one in figures)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def panels(figures: Sequence[Figure]) -> Sequence[Panel]:
    """Throughput and CPU of producers and consumers; a server that is missing has no bar."""
    wanted = ((role, measure) for role in ("producer", "consumer") for measure in ("throughput", "broker CPU"))
    return [Panel(title=f"{role}: {measure}, {_UNITS[measure]}", bars=_bars(figures, role, measure)) for role, measure in wanted]


_UNITS = {"throughput": "records/s", "broker CPU": "seconds a million records"}


def _bars(figures: Sequence[Figure], panel: str, measure: str) -> Sequence[Bar]:
    found = {(one.figure, one.against): one for one in figures}
    bars = []
    for role, way, name, peer in _BARS:
        one = found.get((f"{name}: {measure}", peer))
        if role != panel or one is None:
            continue
        if peer == KAFKA:
            bars.append(Bar(label=f"logbus {way}".strip(), value=one.ours, ours=True))
        bars.append(Bar(label=f"{peer} {way}".strip(), value=one.peer, ours=False))
    return [bar for bar in bars if bar.value is not None]


def _machine() -> str:
    """What matters about the machine, and nothing that identifies it."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    parts = (
        f"{os.cpu_count()} cores ({_processor()})", f"{memory:.0f} GiB", f"Linux {platform.release().split('-')[0]}",
        _python(), _java(),
    )  # fmt: skip
    return ", ".join(part for part in parts if part)


def _python() -> str:
    """The interpreter of our side, and how it was built: with profile-guided optimisation it takes a tenth less CPU. Even if it
    was not configured with it, a distribution may have added it all the same, as Debian does."""
    asked = sysconfig.get_config_var("CONFIG_ARGS") or ""
    ways = [way for flag, way in (("--enable-optimizations", "PGO"), ("--with-lto", "LTO")) if flag in asked]
    built = " and ".join(ways) or "no PGO or LTO asked for"
    return f"Python {platform.python_version()} ({platform.python_compiler()}, {built})"


def _java() -> str:
    """The version of Java; empty if there is none, because most benchmarks do not need it."""
    try:
        said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    except Missing:
        return ""
    return said[0] if said else ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

"""Prometheus text format 0.0.4, written lazily: a page of a hundred thousand lines is generated block by block as it is sent.

Nothing here can produce a line that a scraper rejects: names come from the catalogue, label values are escaped, and values that
are not finite numbers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BLOCK_BYTES = 16 * 1024  # some 200 lines, about a millisecond: the loop takes turns between blocks

Labels = tuple[tuple[str, str], ...]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": " ", "\0": " "})


class Sample(NamedTuple):
    """One line: the family's name with `suffix`, labels, value."""

    value: float
    labels: Labels = ()
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family of the catalogue. `labels` are the names that its samples may carry."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()


def family(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    """The family's lines, each with its line end; nothing if it has no samples."""
    started = False
    for sample in samples:
        if not math.isfinite(sample.value):
            continue
        if not started:
            started = True
            yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        yield f"{metric.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}\n"


def blocks(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines, joined into blocks of about BLOCK_BYTES."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= BLOCK_BYTES:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()


def page(families: Mapping[Metric, Iterable[Sample]]) -> Iterator[bytes]:
    """A whole scrape."""
    return blocks(line for metric, samples in families.items() for line in family(metric, samples))


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"

"""The time of a single line, regardless of the other lines of its file."""

from __future__ import annotations

from datetime import UTC, tzinfo

from logbus.parsing.times import TimeContext
from logbus.shipper.line_timestamps import NO_STAMP, RECOGNISERS, Stamp


def recognise(line: bytes, zone: tzinfo = UTC) -> Stamp:
    """The stamp by the first recogniser that knows the line; NO_STAMP if none does."""
    found = (recogniser(line, TimeContext(zone)) for recogniser in RECOGNISERS.values())
    return next((stamp for stamp in found if stamp is not None), NO_STAMP)

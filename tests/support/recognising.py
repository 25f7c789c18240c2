"""What a line alone says of its time, whatever others of its file are."""

from __future__ import annotations

from datetime import UTC, tzinfo

from logbus.collector.moments import TimeContext
from logbus.collector.timestamps import NO_STAMP, RECOGNISERS, Stamp


def recognise(line: bytes, zone: tzinfo = UTC) -> Stamp:
    """The answer of the first recogniser that knows the line; NO_STAMP when none does."""
    found = (recogniser(line, TimeContext(zone)) for recogniser in RECOGNISERS.values())
    return next((stamp for stamp in found if stamp is not None), NO_STAMP)

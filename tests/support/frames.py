"""Frames that current clients sent to Apache Kafka 4.1, and its answers: one pair for each API and version, captured for this project."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FRAMES_FILE = Path(__file__).with_name("wire_frames.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPair:
    """One request and Apache Kafka's response, without the four length bytes."""

    api_key: int
    version: int
    client: str
    request: bytes
    response: bytes


@cache
def captured_pairs() -> tuple[CapturedPair, ...]:
    """Every captured pair."""
    rows = [json.loads(line) for line in FRAMES_FILE.read_text().splitlines()]
    return tuple(
        CapturedPair(
            api_key=row["api_key"],
            version=row["version"],
            client=row["client"],
            request=bytes.fromhex(row["request"]),
            response=bytes.fromhex(row["response"]),
        )
        for row in rows
    )

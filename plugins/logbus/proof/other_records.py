"""Reloads that replaced a window's records by others because their run accepts that: how they are told, everywhere alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def other_records_text(note: Mapping[str, Any]) -> str:
    """A reload that replaced records by others, as somebody had accepted."""
    return (
        f"{note['at']}: attempt {note['attempt']} of run {note['run_id']} replaced its records by others, as that run accepts: "
        f"{note['read_before']} records of fingerprint {note['fingerprint_before']} by {note['read_after']} of "
        f"{note['fingerprint_after']}"
    )

"""Bytes of records in JSON and on pages: as text where they are text, otherwise in base64."""

from __future__ import annotations

import base64
from typing import Any


def shown_value(value: bytes | None) -> dict[str, Any]:
    """A value for JSON: as text where it is text that PostgreSQL holds, otherwise in base64."""
    if value is None:
        return {"value": None}
    text_of = value.decode(errors="replace")
    if text_of.encode() == value and "\0" not in text_of:
        return {"value": text_of}
    return {"value_base64": base64.b64encode(value).decode()}


def cut(value: bytes | None, size: int) -> bytes | None:
    """The first `size` bytes; without a character of UTF-8 that would be cut in two at their end."""
    if value is None or len(value) < size:
        return value
    head = value[:size]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        is_cut_at_end = error.reason == "unexpected end of data"
        return head[: error.start] if is_cut_at_end else head
    return head

from __future__ import annotations

import pytest
from logbus.ledger.error_budget import VALUE_BYTES_KEPT_MAX
from logbus.ui.window_detail import whole_characters

FULL = b"x" * VALUE_BYTES_KEPT_MAX


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (b"\xc3", b"\xc3"),  # short, so nobody cut it
        (FULL, FULL),
        (FULL[:-1] + b"\xc3", FULL[:-1]),
        (FULL[:-3] + "\U0001f980".encode()[:3], FULL[:-3]),
        (b"\xff" + FULL[1:], b"\xff" + FULL[1:]),  # no text at all
    ],
)
def test_a_text_that_was_cut_ends_with_a_whole_character(value: bytes | None, kept: bytes | None) -> None:
    assert whole_characters(value) == kept

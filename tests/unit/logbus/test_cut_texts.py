from __future__ import annotations

import pytest
from logbus.wording import cut

SIZE = 2_000
FULL = b"x" * SIZE


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (b"\xc3", b"\xc3"),  # too short to have been cut
        (FULL, FULL),
        (FULL[:-1] + b"\xc3", FULL[:-1]),
        (FULL[:-3] + "\U0001f980".encode()[:3], FULL[:-3]),
        (FULL + b"more", FULL),
        (b"\xff" + FULL[1:], b"\xff" + FULL[1:]),  # not text at all
    ],
)
def test_a_text_that_was_cut_ends_with_a_whole_character(value: bytes | None, kept: bytes | None) -> None:
    assert cut(value, SIZE) == kept

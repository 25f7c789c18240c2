"""How pages are split into blocks, and when printed output matches what a page promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import blocks, shows

PAGE = """# A page

<!-- run -->
```bash
logbus lag
```

Text.

```text
plain
```
"""


def test_a_block_knows_its_comment_its_kind_and_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second = blocks(page)
    assert (first.mark, first.kind, first.text, first.line) == ("run", "bash", "logbus lag\n", 4)
    assert (second.mark, second.kind, second.text) == ("", "text", "plain\n")


@pytest.mark.parametrize(
    ("printed", "promised"),
    [
        ("┃ hour ┃ read ┃\n│ 10   │ 7    │\n", "hour | read\n10 | 7\n"),
        (" status | count \n--------+-------\n    200 |  4484\n", "status | count\n200 | 4484\n"),
        ("a\nb\nc\nd\n", "a\n...\nd\n"),
        ("done in 1.2 s, 30 lines/s\n", "done in ... s, ... lines/s\n"),
        ("at 127.0.0.1:9092\n", "at 127.0.0.1:...\n"),
    ],
)
def test_frames_and_what_changes_are_not_compared(printed: str, promised: str) -> None:
    assert shows(printed, promised)


@pytest.mark.parametrize(
    ("printed", "promised"),
    [("200 4484\n", "200 4485\n"), ("a\nb\n", "a\n"), ("a\n", "a\nb\n"), ("error: no\n", "...\ndone\n")],
)
def test_what_was_promised_and_not_printed_is_noticed(printed: str, promised: str) -> None:
    assert not shows(printed, promised)

"""Which client uses which API versions, by docs/protocol-support.md, for the tests that observe clients."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "protocol-support.md"
ROW = re.compile(r"\| (?P<key>\d+) \| \w+ \| [\d-]+ \| (?P<spoken>[^|]*) \|")


def claims() -> dict[str, set[tuple[int, int]]]:
    """By client, the API keys and versions that it uses according to the page."""
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in ROW.finditer(PAGE.read_text()):
        for claim in filter(None, row["spoken"].split(", ")):
            client, version = claim.rsplit(" ", 1)
            found[client].add((int(row["key"]), int(version)))
    return found

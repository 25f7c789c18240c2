"""docs/architecture.md is what the code says: its modules, its imports, and the files that it names."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.architecture import CHECKOUT, PAGE, current_page

TEXT = (CHECKOUT / PAGE).read_text()


def test_modules_and_imports_are_those_of_the_code() -> None:
    assert current_page(CHECKOUT) == TEXT, "run `python scripts/architecture.py`"


def test_the_files_to_open_exist() -> None:
    table = TEXT.partition("## To change X, open Y")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) >= 40
    for row in rows:
        folder = Path()
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", row.split("|")[2]):
            path = next(
                (top / name for top in (folder, Path(), Path("plugins/logbus")) if (CHECKOUT / top / name).exists()), None
            )
            assert path is not None, f"{name} of {row!r}"
            folder = path if path.suffix != ".py" else path.parent

from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory
from logbus.windows import migrations

FOLDER = Path(migrations.__file__).parent


def test_the_revisions_are_one_line_that_ends_at_the_named_one() -> None:
    script = ScriptDirectory(str(FOLDER))
    assert script.get_heads() == [migrations.REVISION]
    assert len(script.get_bases()) == 1


def test_revisions_are_numbered_in_their_order_and_named_after_it() -> None:
    script = ScriptDirectory(str(FOLDER))
    revisions = [found.revision for found in script.walk_revisions()][::-1]
    first = int(revisions[0])
    assert revisions == [f"{number:04d}" for number in range(first, first + len(revisions))]
    assert [path.stem[:5] for path in sorted((FOLDER / "versions").glob("r*.py"))] == [f"r{number}" for number in revisions]

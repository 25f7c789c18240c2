"""The file from which other terminals get the addresses of broker and warehouse."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from logbus.commands.up import environment_file


def test_a_shell_that_reads_the_file_knows_every_address_whatever_is_in_it(tmp_path: Path) -> None:
    url = "postgresql+psycopg://postgres@/logbus?host=/a b/it's $HOME"
    with environment_file(tmp_path / "env", {"LOGBUS_WAREHOUSE_URL": url}) as path:
        script = f'source "{path}"; printf %s "$LOGBUS_WAREHOUSE_URL"; command -v psql logbus >&2'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == url
    assert [Path(line).name for line in done.stderr.split()] == ["psql", "logbus"]


def test_the_file_is_gone_when_what_it_says_is_not_true_any_more(tmp_path: Path) -> None:
    def breaks() -> None:
        with environment_file(tmp_path / "env", {}) as path:
            assert path.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks()
    assert not (tmp_path / "env").exists()

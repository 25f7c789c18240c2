"""The Java a load needs: one sentence before anything starts, not shell errors afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus import spark_submit
from logbus.cli import main


def home_with(folder: Path, script: str | None) -> dict[str, str]:
    """An environment whose JAVA_HOME holds this program."""
    (folder / "bin").mkdir()
    if script is not None:
        (folder / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / "java").chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": os.defpath}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'openjdk version \"21.0.4\" 2024-07-16' >&2", None),
        (None, "does not run: No such file or directory: unset JAVA_HOME, or install one"),
        ("echo 'java version \"1.8.0_201\"' >&2", "is version 1.8.0_201; Spark needs 17 or newer: install one"),
        ("echo libjvm.so is broken; exit 1", "does not run: libjvm.so is broken: unset JAVA_HOME, or install one"),
        ("true", "does not run: no message"),
    ],
)
def test_what_is_wrong_with_java_is_said_in_a_sentence_with_what_to_do(
    script: str | None, said: str | None, tmp_path: Path
) -> None:
    why = spark_submit.why_no_java(home_with(tmp_path, script))
    assert why is None if said is None else f"{tmp_path}/bin/java {said}" in str(why)
    assert (spark_submit.why_no_java({"PATH": str(tmp_path)}) or "").startswith(
        "no Java on the PATH, so Spark cannot run: install one"
    )


def test_a_load_without_java_says_so_before_it_begins(tmp_path: Path) -> None:
    words = ["load", "--pipeline", "web", "--warehouse", "postgresql+psycopg://nobody@nowhere/none"]
    result = CliRunner().invoke(main, words, env={"JAVA_HOME": str(tmp_path)})
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path}/bin/java does not run: No such file or directory: unset JAVA_HOME")
    assert result.stderr.count("\n") == 1

"""Spark's own launcher, where its path has a space, as in a home directory named after a person."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from logbus import spark_submit

SCRIPTS = ("spark-submit", "find-spark-home", "find_spark_home.py")


def test_spark_starts_from_a_directory_with_a_space_in_its_name(tmp_path: Path) -> None:
    programs = tmp_path / "my programs"
    programs.mkdir()
    for name in SCRIPTS:
        (programs / name).symlink_to(Path(spark_submit.spark_submit_binary()).with_name(name))
    python = programs / "python"
    python.symlink_to(sys.executable)
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    ours = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    command, alone = [str(programs / "spark-submit"), "--version"], {**inherited, **ours}
    assert subprocess.run(command, env=alone, capture_output=True, check=False).returncode != 0  # or this can all go
    environment = {**alone, **spark_submit.launcher_environment(inherited)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "version 4." in said.stderr


def test_a_spark_that_the_user_names_is_taken() -> None:
    assert spark_submit.launcher_environment({"SPARK_HOME": "/opt/spark"}) == {}

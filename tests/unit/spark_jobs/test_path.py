from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from logbus.spark_submit import environment, pyspark_home


def test_a_program_imports_pyspark_compiled_although_spark_submit_puts_its_archive_first() -> None:
    archives = [str(path) for path in (Path(pyspark_home()) / "python" / "lib").glob("*.zip")]
    program = "import logbus_spark, pyspark, py4j; print(pyspark.__file__, py4j.__file__)"
    path = os.pathsep.join([*archives, environment(None, {})["PYTHONPATH"]])
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert len(archives) == 2
    assert not [place for place in found.stdout.split() if ".zip" in place]

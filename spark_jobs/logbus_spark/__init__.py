"""The PySpark programs: submitted, never imported by the pipeline.

spark-submit puts pyspark.zip first on Python's path, and from an archive every process compiles what it imports: a second of CPU
for each of the half dozen that a load starts. The archive of an installed pyspark holds the same modules as the folder it lies
in, where they are compiled already; so it leaves the path before anything of pyspark is imported.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _leave_archives() -> None:
    elsewhere = [path for path in sys.path if not path.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", elsewhere)
    folders = (installed.submodule_search_locations or []) if installed is not None else []
    same = {path for path in sys.path if path.endswith(".zip") and any(Path(path).is_relative_to(folder) for folder in folders)}
    sys.path[:] = [path for path in sys.path if path not in same]


if "pyspark" not in sys.modules:
    _leave_archives()

"""`make grid`: whether the requirements resolve beside each Airflow, for each Python, as of the day of its release.

An Airflow that runs has the packages of its day, by its constraints. So each release is resolved with what there was then, and
once more with the oldest version of every requirement. Nothing is installed; the index is asked for metadata.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
# The day after a release: its wheels are there, and its providers.
RELEASES = {
    "3.2.0": "2026-04-08",
    "3.2.1": "2026-04-23",
    "3.2.2": "2026-05-30",
    "3.3.0": "2026-07-07",
    "3.3.1": "2026-08-13",
    "3.3.2": "2026-09-18",
}
BESIDE_AIRFLOW = ("logbus[airflow,spark,connect,duckdb,msk,gcp,openlineage,schemas]",)
EVERYTHING = (*BESIDE_AIRFLOW, "logbus[local]", "logbus-broker")
# No package of Airflow's needs it, so that its constraints leave it free: the newest is what people get.
FREE = ("--exclude-newer-package", "kafka-python=false")
# There are no wheels of pyspark, and to build one of each version only to read this takes minutes and gigabytes.
KNOWN = """[[dependency-metadata]]
name = "pyspark"
requires-dist = ["py4j>=0.10.9.7,<0.11"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    python: str
    airflow: str
    packages: Sequence[str]
    options: Sequence[str]

    def __str__(self) -> str:
        return f"Airflow {self.airflow}, Python {self.python} {' '.join(self.options)}"


def cases() -> Iterator[Case]:
    for python in PYTHONS:
        for airflow, day in RELEASES.items():
            yield Case(python=python, airflow=airflow, packages=BESIDE_AIRFLOW, options=("--exclude-newer", day))
        oldest = next(iter(RELEASES))
        yield Case(python=python, airflow=oldest, packages=EVERYTHING, options=("--resolution", "lowest-direct"))


def uv_program() -> str:
    """In the PATH, or what scripts/bootstrap.sh has fetched."""
    return shutil.which("uv") or str(CHECKOUT / ".tools" / "uv" / "bin" / "uv")


def resolve(case: Case, uv: str, wheels: Path) -> str | None:
    """What does not go together; None if all does."""
    wanted = "\n".join([*case.packages, f"apache-airflow=={case.airflow}"])
    command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--config-file", "uv.toml", "--find-links", str(wheels)]
    command += ["--python-version", case.python, *case.options, *FREE]
    ended = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False, cwd=wheels)
    return None if ended.returncode == 0 else ended.stderr.strip()


def main() -> int:
    uv = uv_program()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="logbus-grid-") as folder:
        build = [uv, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", folder]
        subprocess.run(build, check=True, cwd=CHECKOUT)
        (Path(folder) / "uv.toml").write_text(KNOWN)
        for case in cases():
            trouble = resolve(case, uv, Path(folder))
            failed += trouble is not None
            print(f"{'ok  ' if trouble is None else 'FAIL'} {case}{'' if trouble is None else f': {trouble}'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`make grid`: whether the requirements resolve beside each Airflow, for each Python, as of the day of its release.

An Airflow that runs has the packages of its day, by its constraints. So each release is resolved with what there was then, and
once more with the oldest version of every requirement. Nothing is installed; the index is asked for metadata.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
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
OURS = ("logbus[airflow,spark,iceberg,duckdb]", "logbus-broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    python: str
    airflow: str
    options: Sequence[str]

    def __str__(self) -> str:
        return f"Airflow {self.airflow}, Python {self.python} {' '.join(self.options)}"


def cases() -> Iterator[Case]:
    for python in PYTHONS:
        for airflow, day in RELEASES.items():
            yield Case(python=python, airflow=airflow, options=("--exclude-newer", day))
        yield Case(python=python, airflow=next(iter(RELEASES)), options=("--resolution", "lowest-direct"))


def resolve(case: Case, uv: str) -> str | None:
    """What does not go together; None if all does."""
    local = [f"{name} @ {folder.as_uri()}" for name, folder in zip(OURS, (CHECKOUT, CHECKOUT / "broker"), strict=True)]
    wanted = "\n".join([*local, f"apache-airflow=={case.airflow}"])
    command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--python-version", case.python, *case.options]
    ended = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    return None if ended.returncode == 0 else ended.stderr.strip()


def main() -> int:
    uv = shutil.which("uv") or str(CHECKOUT / ".tools" / "uv" / "bin" / "uv")
    failed = 0
    for case in cases():
        trouble = resolve(case, uv)
        failed += trouble is not None
        print(f"{'ok  ' if trouble is None else 'FAIL'} {case}{'' if trouble is None else f': {trouble}'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

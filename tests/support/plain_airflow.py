"""A plain Airflow in an environment of its own, into which our wheels are installed as anybody would install them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS

from scripts.grid import FREE, RELEASES, uv_program

CHECKOUT = Path(__file__).parents[2]
SPARK_WHEELS = CHECKOUT / ".tools" / "spark"
TOPIC = "read.access_log"
DAG = f"""# airflow dag
from logbus.pipelines import hourly_ingest
hourly_ingest(pipeline="access_log", topic="{TOPIC}", table="access_log", parse="combined")
"""


@dataclass(frozen=True)
class PlainAirflow:
    """`programs` is the folder of the environment's programs; what else Airflow writes and reads is in `home`. `printed` is what
    they have written so far, on either output."""

    programs: Path
    home: Path
    variables: Mapping[str, str]
    printed: list[str] = field(default_factory=list)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **{name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if name in os.environ},
            "PATH": os.pathsep.join([str(self.programs), os.environ["PATH"]]),
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(PATIENCE_SECONDS),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            **self.variables,
        }

    def run(self, *words: str) -> str:
        ended = subprocess.run(
            [str(self.programs / words[0]), *words[1:]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed.append(ended.stdout + ended.stderr)
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-4_000:]
        return ended.stdout

    def write_dag(self) -> None:
        (self.home / "dags").mkdir()
        (self.home / "dags" / "access_log.py").write_text(DAG)


def build_wheels(folder: Path) -> None:
    """Of both distributions."""
    command = [uv_program(), "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder)]
    subprocess.run(command, check=True, cwd=CHECKOUT)


def make_environment(folder: Path) -> Path:
    """An empty one; returns the folder of its programs."""
    subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    return folder / "bin"


def make_spark_wheel(version: str) -> None:
    """Once a machine: pyspark is published as source, and making its wheel takes 25 s of CPU."""
    if not list(SPARK_WHEELS.glob(f"pyspark-{version}-*.whl")):
        command = [uv_program(), "tool", "run", "--quiet", "--python", sys.executable, "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*command, "--wheel-dir", str(SPARK_WHEELS), f"pyspark=={version}"], check=True)


def install(programs: Path, wheels: Path, requirements: Sequence[str], *, airflow: str, spark: str) -> None:
    """The requirements, with an Airflow and a Spark, as of that Airflow's release."""
    make_spark_wheel(spark)
    command = [uv_program(), "pip", "install", "--quiet", "--no-config", "--python", str(programs / "python")]
    versions = [f"apache-airflow=={airflow}", f"pyspark=={spark}", f"pyspark-client=={spark}"]
    options = ["--find-links", str(wheels), "--find-links", str(SPARK_WHEELS), "--exclude-newer", RELEASES[airflow], *FREE]
    subprocess.run([*command, *requirements, *versions, *options], check=True, cwd=programs)

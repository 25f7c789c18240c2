"""Versions: is everything that logbus requires installed, in a version that it supports, and does Airflow find the provider?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

from logbus.doctor.looking import Surroundings
from logbus.doctor.spark import installed
from logbus.status.checkup import Finding, error, well

SHOWN = (
    "logbus",
    "apache-airflow",
    "apache-airflow-providers-apache-kafka",
    "apache-airflow-providers-apache-spark",
    "confluent-kafka",
)
PROVIDERS = "apache_airflow_provider"  # the entry points that Airflow looks for


def check_versions(around: Surroundings) -> Iterator[Finding]:
    """Every requirement of the distribution against what is installed."""
    wrong = list(unmet())
    for name, wanted, found in wrong:
        message = f"{name} is {found or 'not installed'}, logbus needs {wanted}"
        yield error("versions", message, f"uv pip install '{wanted}' (or pip), into the environment of {sys.executable}")
    if not any(point.value.startswith("logbus.") for point in metadata.entry_points(group=PROVIDERS)):
        yield error(
            "versions", "Airflow does not find the provider logbus", "install logbus as a distribution: uv pip install -e ."
        )
    if not wrong:
        shown = ", ".join(f"{name} {installed(name)}" for name in SHOWN)
        yield well("versions", f"Python {sys.version.split()[0]}, {shown}")


def unmet() -> Iterator[tuple[str, str, str | None]]:
    """Name, requirement and installed version of each requirement that is not met."""
    from packaging.requirements import Requirement

    for text in metadata.requires("logbus") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = installed(wanted.name)
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            yield wanted.name, str(wanted).partition(";")[0].strip(), found

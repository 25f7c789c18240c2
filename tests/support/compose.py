"""docker-compose.airflow.yml as Compose reads it: anchors resolved, variables filled in."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]
FILE = PROJECT / "docker-compose.airflow.yml"
SCRIPT = PROJECT / "scripts" / "compose-env.sh"
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")
OWN_IMAGE = "logbus:"


def load_compose() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return compose


def services(*, own: bool | None = None, profile: str | None = None) -> dict[str, dict[str, Any]]:
    """All services, or only those of our own image (`own`), or only the others; those that start with a profile."""
    every: dict[str, dict[str, Any]] = load_compose()["services"]
    return {
        name: service
        for name, service in every.items()
        if (own is None or service["image"].startswith(OWN_IMAGE) == own)
        and (profile is None or profile in service.get("profiles", [profile]))
    }


def write_secrets(path: Path) -> dict[str, str]:
    """The variables that scripts/compose-env.sh writes into the file, by name."""
    subprocess.run([str(SCRIPT), str(path)], check=True, capture_output=True)
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables filled in; a missing one is an error, as for Compose. `$$` is a dollar."""
    return VARIABLE.sub(lambda found: variables[found[1]], text).replace("$$", "$")

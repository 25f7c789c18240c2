"""Debian packages unpacked into the user's cache, not installed: no root, no service, nothing changed on the machine.

`apt-get download` fetches packages from the machine's own sources; `dpkg-deb` unpacks them. The folder appears, by a rename, only
once it is complete. A machine without apt, or whose sources lack a package, raises `Missing`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import processes
from benchmarks.peers.maven import cache
from benchmarks.processes import Missing

FETCH_SECONDS_MAX = 600


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """The folder with the packages' files, laid out as under /; fetched once."""
    folder = cache() / name / "root"
    if not folder.is_dir():
        _fetch(name, packages, folder)
    return folder


def _fetch(name: str, packages: Sequence[str], folder: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Missing(f"no `{program}` to fetch {name}: its packages come from Debian or Ubuntu")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        done = processes.run(["apt-get", "download", *packages], seconds_max=FETCH_SECONDS_MAX, cwd=Path(scratch))
        if done.returncode != 0:
            raise Missing(f"apt-get could not download {name} (is `apt-get update` due?): {done.stderr[-500:].strip()}")
        for package in sorted(Path(scratch).glob("*.deb")):
            unpack = processes.run(["dpkg-deb", "-x", str(package), f"{scratch}/root"], seconds_max=FETCH_SECONDS_MAX)
            if unpack.returncode != 0:
                raise Missing(f"dpkg-deb could not unpack {package.name}: {unpack.stderr[-500:].strip()}")
        if not folder.is_dir():
            Path(scratch, "root").rename(folder)

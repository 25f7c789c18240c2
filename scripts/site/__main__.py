"""`python -m scripts.site FOLDER`: writes every page of the documentation site, ready to be built."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.site.pages import write_pages

if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

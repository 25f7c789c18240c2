"""Called by `make docs-serve` before each build (`hooks:` in mkdocs.yml): writes changed pages again.

A builder without hooks misses nothing: `make docs` writes the pages before it calls one.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

from scripts.site.pages import write_pages


def on_pre_build(config: MkDocsConfig) -> None:
    write_pages(Path(config.docs_dir))

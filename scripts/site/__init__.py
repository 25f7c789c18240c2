"""The documentation site: pages generated from code, and links that lead out of docs/. Used by mkdocs.yml and its tests."""

"""The documentation site: pages that are made from code, and links that lead out of docs/. Used by mkdocs.yml and its tests."""

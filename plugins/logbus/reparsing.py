"""A pipeline's parser for a redrive: the very one its loads use, out of `spark_jobs.parsers`, which knows no Spark.

The only place of this package that imports from `spark_jobs`, and only when it is called (docs/decisions has the reason).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.errors import UserError
from logbus.warehouse.redrive import LeftOut, Refused, Reparser
from logbus.windows.model import Pipeline


class PipelineParser:
    """`Reparser` over a parser of `spark_jobs.parsers`."""

    def __init__(self, pipeline: Pipeline) -> None:
        try:
            self._parsers: Any = importlib.import_module("spark_jobs.parsers")
        except ModuleNotFoundError as error:
            raise UserError(
                f"the parsers cannot be imported ({error}): install the project again, spark_jobs is part of it"
            ) from None
        self._parser = self._parsers.parser_for(pipeline.parse, pipeline.settings)
        self.columns: Mapping[str, str] = self._parser.columns

    def parse(self, value: bytes | None) -> Sequence[Any]:
        if value is None:
            raise Refused("NoValue", "the record has no value (a tombstone)")
        try:
            row: Sequence[Any] = self._parser.parse(value)
        except getattr(self._parsers, "Filtered", ()) as error:
            raise LeftOut from error
        except self._parsers.Unparsable as error:
            raise Refused(error.kind, storable(str(error))) from error
        return row


def storable(text: str) -> str:
    """Any text as PostgreSQL can hold it."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def reparser_for(pipeline: Pipeline) -> Reparser:
    """The pipeline's parser as its settings say now."""
    return PipelineParser(pipeline)

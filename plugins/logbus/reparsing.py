"""A pipeline's parser for a redrive: the very one its loads use, out of `spark_jobs`, of which these modules know no Spark.

The only place of this package that imports from `spark_jobs`, and only when it is called (docs/decisions has the reason).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.errors import UserError
from logbus.warehouse.redrive import LeftOut, Refused, Reparser
from logbus.windows.model import Pipeline

MODULES = ("parsers", "parsing", "records")


class PipelineParser:
    """`Reparser` over a parser of `spark_jobs.parsers`."""

    def __init__(self, pipeline: Pipeline) -> None:
        try:
            self._parsers, self._parsing, records = (importlib.import_module(f"spark_jobs.{name}") for name in MODULES)
        except ModuleNotFoundError as error:
            raise UserError(
                f"the parsers cannot be imported ({error}): install the project again, spark_jobs is part of it"
            ) from None
        self._storable = records.storable
        self._parser = self._parsers.parser_for(pipeline.parse, pipeline.settings)
        self.columns: Mapping[str, str] = self._parser.columns

    def parse(self, value: bytes | None) -> Sequence[Any]:
        try:
            row: Sequence[Any] = self._parsing.parse_value(self._parser, value)
        except self._parsers.Filtered as error:
            raise LeftOut from error
        except self._parsers.Unparsable as error:
            raise Refused(error.kind, self._storable(str(error))) from error
        return row


def reparser_for(pipeline: Pipeline) -> Reparser:
    """The pipeline's parser as its settings say now."""
    return PipelineParser(pipeline)

"""Which metrics and labels a PromQL expression names. Not a parser: strings, ranges and functions are removed, names remain."""

from __future__ import annotations

import re
from dataclasses import dataclass

STRING = re.compile(r'"(?:\\.|[^"\\])*"')
RANGE = re.compile(r"\[[^\]]*\](?:\s*offset\s+\w+)?")
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?\s*(\()?")
MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
WORDS = {"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """`metrics`: by name, the labels in their matchers; `grouping`: the labels of by (...) and the like."""

    metrics: dict[str, set[str]]
    grouping: set[str]


def named(expression: str) -> Named:
    text = RANGE.sub("", STRING.sub('""', expression))
    grouping = {label.strip() for found in GROUPING.finditer(text) for label in found[2].split(",") if label.strip()}
    metrics: dict[str, set[str]] = {}
    for found in NAME.finditer(GROUPING.sub(" ", text)):
        if not found[3] and found[1] not in WORDS:
            metrics.setdefault(found[1], set()).update(MATCHER.findall(found[2] or ""))
    return Named(metrics=metrics, grouping=grouping)

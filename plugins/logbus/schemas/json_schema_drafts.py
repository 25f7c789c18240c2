"""Which draft of JSON Schema a schema is of, and whether equal texts of two drafts mean the same."""

from __future__ import annotations

from typing import Any

DRAFT_DEFAULT = "draft/2020-12/schema"
SIMILAR_DRAFTS = frozenset(("draft-07/schema", "draft/2019-09/schema", DRAFT_DEFAULT))
# What these drafts do not all have, or do not all check.
OF_DRAFT = frozenset(
    (
        *("format", "contentEncoding", "contentMediaType", "contentSchema", "contains", "minContains", "maxContains"),
        *("dependencies", "dependentRequired", "dependentSchemas", "prefixItems", "additionalItems"),
        *("unevaluatedProperties", "unevaluatedItems", "if", "then", "else", "$recursiveRef", "$dynamicRef"),
    )
)


def differing_drafts(reader: Any, writer: Any) -> str:
    """Why equal texts may not mean the same; empty if they do. A schema that names no draft is of the newest, by which it is
    checked: beside a similar one the texts count, as long as no keyword is in them whose meaning has changed."""
    named = [root.get("$schema") if isinstance(root, dict) else None for root in (reader, writer)]
    drafts = [DRAFT_DEFAULT if each is None else str(each).partition("json-schema.org/")[2].rstrip("#") for each in named]
    if drafts[0] == drafts[1]:
        return ""
    changed = sorted(OF_DRAFT & (_keywords(reader) | _keywords(writer)))
    if None in named and SIMILAR_DRAFTS.issuperset(drafts) and not changed:
        return ""
    reason = f", and {', '.join(changed)} may mean something else" if changed else ""
    return f"the drafts differ: {named[1] or 'none'} to {named[0] or 'none'}{reason}"


def _keywords(root: Any) -> set[str]:
    """All names in the schema, those of properties among them."""
    names, parts = set[str](), [root]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            names |= part.keys()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return names

"""Where things lie in the warehouse. Plain names without SQLAlchemy: Spark's workers need them and nothing else of the ledger."""

from __future__ import annotations

SCHEMA = "logbus"
STAGING_SCHEMA = "logbus_staging"  # tables of attempts under way; whatever is in it may be dropped with its attempt
LEAF_SCHEMA = "logbus_leaf"  # partitions of target tables, kept out of the user's own schemas

TASK_COLUMN = "_task"  # in staging: the Spark task attempt that wrote the row

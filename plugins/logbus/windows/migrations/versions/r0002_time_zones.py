"""Windows of a day begin at the midnights of a pipeline's time zone; all that are registered already are of UTC."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("alter table logbus.pipeline add column timezone text not null default 'UTC'")

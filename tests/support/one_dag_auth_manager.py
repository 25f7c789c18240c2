"""Airflow's own simple auth manager, and users who may read one Dag alone, which it cannot express: `only_DAG`."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

PREFIX = "only_"


class OneDagAuthManager(SimpleAuthManager):
    """What the simple one says, less the other Dags for users of one Dag."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        allowed: bool = super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        name = str(user.get_name())
        is_other = name.startswith(PREFIX) and details is not None and details.id != name.removeprefix(PREFIX)
        return allowed and not is_other

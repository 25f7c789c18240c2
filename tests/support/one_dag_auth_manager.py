"""Airflow's simple auth manager plus users, named `only_DAG`, who may read a single DAG, which it does not support."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

PREFIX = "only_"


class OneDagAuthManager(SimpleAuthManager):
    """As the simple one, but users of one DAG are refused all others."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        allowed: bool = super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        name = str(user.get_name())
        is_other = name.startswith(PREFIX) and details is not None and details.id != name.removeprefix(PREFIX)
        return allowed and not is_other

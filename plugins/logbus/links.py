"""The button on every task that leads to its window in the ledger (logbus.web serves the page).

Airflow asks for the link in the worker when the task ends, and passes the running task instance as its key; so the run's
interval is at hand and nothing has to be stored for it. The provider's metadata names this module, so it stands alone.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

from logbus import errors, model, task_context

PAGES = "/logbus/windows"


class WindowLink(BaseOperatorLink):
    """Links to the run's window; for a task over many windows, to all windows of its pipeline."""

    name = "Window in the ledger"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        base_url = str(conf.get("api", "base_url", fallback="")).rstrip("/")
        pipeline = getattr(operator, "pipeline_name", None) or operator.pipeline
        path = f"{PAGES}/{quote(str(getattr(pipeline, 'name', pipeline)), safe='')}"
        if getattr(operator, "windows", None) is None:
            try:
                start = task_context.run_interval(ti_key.get_template_context()).start
                path += "/" + quote(model.instant_text(start), safe=":")
            except errors.UserError:  # a run without an interval has no window of its own
                pass
        return f"{base_url}{path}?{urlencode({'warehouse_conn_id': operator.warehouse_conn_id})}"

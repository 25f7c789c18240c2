from __future__ import annotations

from datetime import timedelta

import pytest
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.sensors.window_loaded import WindowLoadedSensor


def test_the_pipelines_name_is_a_template() -> None:
    assert "pipeline_name" in WindowLoadedSensor.template_fields


def test_lateness_without_event_time_would_do_nothing_and_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="lateness is for event_time=True"):
        WindowLoadedSensor(task_id="loaded", pipeline=pipeline, lateness=timedelta(minutes=5))

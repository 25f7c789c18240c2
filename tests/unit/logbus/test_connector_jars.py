from __future__ import annotations

from pathlib import Path

import pytest
from logbus import spark_submit
from logbus.connector_jars import JARS_VARIABLE, class_path, jar_names, missing
from logbus.errors import UserError


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for name in jar_names():
        (tmp_path / name).touch()
    return tmp_path


def test_the_connector_is_on_the_class_path_where_its_jars_are_named(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(jars))
    assert spark_submit.conf()["spark.jars"] == class_path(jars)
    assert len(class_path(jars).split(",")) == 4
    monkeypatch.delenv(JARS_VARIABLE)
    assert "spark.jars" not in spark_submit.conf()


def test_a_folder_that_lacks_a_jar_is_refused_with_its_name_and_the_way_out(jars: Path) -> None:
    lost = jar_names()[2]
    (jars / lost).unlink()
    assert missing(jars) == [lost]
    with pytest.raises(UserError, match=rf"lacks {lost}.*logbus connector-jars"):
        class_path(jars)

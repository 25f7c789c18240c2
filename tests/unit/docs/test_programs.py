"""Programs and DAGs shown on pages work: Airflow parses the DAGs, and what they import exists."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from logbus.model import Pipeline
from logbus.windows.rows import definition_of, differences

from tests.support.pages import PAGES, Block, blocks

# Others are for an Airflow with more providers: tests/e2e/test_plain_airflow.py reads them.
PYTHON = [
    block for page in PAGES for block in blocks(page) if block.kind == "python" and not block.file_name("dag of another provider")
]
DAGS = [block for block in PYTHON if block.file_name("dag")]
PAGES_WITH_DAGS = sorted({block.page for block in DAGS})


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_program_that_a_page_shows_compiles_and_its_imports_are_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
        elif isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "how-to"], ids=lambda page: page.name)
def test_the_programs_of_how_to_pages_say_what_they_are(page: Path) -> None:
    assert [
        block.place for block in PYTHON if block.page == page and not (block.file_name("dag") or block.file_name("program"))
    ] == []


def test_the_tutorial_and_every_how_to_page_show_a_dag() -> None:
    wanted = {page.name for page in PAGES if page.parent.name == "how-to"} | {"tutorial.md"}
    assert wanted <= {page.name for page in PAGES_WITH_DAGS}


def test_how_to_pages_define_a_pipeline_alike(tmp_path: Path) -> None:
    """A reader who follows two of them must not end up with DAGs that contradict each other."""
    from airflow.dag_processing.dagbag import DagBag

    for block in DAGS:
        if block.page.parent.name == "how-to":
            (tmp_path / f"{block.page.stem}_{block.file_name('dag')}").write_text(block.text)
    dags = [dag for path in sorted(tmp_path.iterdir()) for dag in DagBag(path, load_op_links=False).dags.values()]
    pipelines = [task.pipeline for dag in dags for task in dag.tasks if isinstance(getattr(task, "pipeline", None), Pipeline)]
    assert {"clicks", "orders"} <= {pipeline.name for pipeline in pipelines}
    first = {pipeline.name: pipeline for pipeline in reversed(pipelines)}
    assert [
        difference
        for pipeline in pipelines
        for difference in differences(definition_of(first[pipeline.name]), definition_of(pipeline))
    ] == []


@pytest.mark.parametrize("page", PAGES_WITH_DAGS, ids=lambda page: page.name)
def test_airflow_reads_every_dag_that_a_page_shows(page: Path, tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    shown = {str(block.file_name("dag")): block.text for block in DAGS if block.page == page}
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    bag = DagBag(tmp_path, load_op_links=False)
    assert bag.import_errors == {}
    assert {Path(dag.fileloc).name for dag in bag.dags.values()} == set(shown)

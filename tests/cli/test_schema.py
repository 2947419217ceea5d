"""``alignup schema``: the schemas accept what the readers accept."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from alignup.align.errors import AlignError
from alignup.cli.schema import TYPES
from alignup.machines import load
from alignup.simulate import cluster_files, trace
from tests.cli.commands import in_process
from tests.console_runner import ROOT

READERS = {
    "machine": lambda path: load(str(path)),
    "cluster": cluster_files.read_cluster,
    "sweep": cluster_files.read_sweep,
    "trace": trace.read_file,
}
TRACE = """
apiVersion: alignup.dev/v1
kind: Trace
templates: {web: {requests: {cpu: 2}}}
events: [{at: 0, arrive: a, template: web}]
"""
SCHEMAS = ROOT / "docs" / "schemas"
MODELINE = "# yaml-language-server: $schema="
FLEET = ROOT / "examples" / "fleet"
TEXTS = {
    "machine": (FLEET / "telco-machine.yaml").read_text("utf-8"),
    "cluster": (FLEET / "telco.yaml").read_text("utf-8"),
    "sweep": (FLEET / "sweep.yaml").read_text("utf-8"),
    "trace": TRACE,
}


@pytest.fixture
def accepts(tmp_path):
    """Return whether the reader and the schema accept a text."""

    def decide(kind: str, text: str) -> tuple[bool, bool]:
        path = tmp_path / "file.yaml"
        path.write_text(text, "utf-8")
        run = in_process("schema", kind)
        assert run.returncode == 0
        try:
            READERS[kind](path)
        except AlignError:
            read = False
        else:
            read = True
        return read, jsonschema_rs.is_valid(json.loads(run.stdout), yaml.safe_load(text))

    return decide


def test_every_kind_is_tried():
    assert TYPES.keys() == READERS.keys() == TEXTS.keys()


@pytest.mark.parametrize("kind", TEXTS)
def test_the_examples_are_valid(kind, accepts):
    assert accepts(kind, TEXTS[kind]) == (True, True)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        pytest.param("machine", "nodes:", "node:", id="machine: unknown field"),
        pytest.param("cluster", "kind: Cluster", "kind: Sweep", id="cluster: other kind"),
        pytest.param("cluster", "count: 60", "count: 0", id="cluster: no nodes"),
        pytest.param("cluster", "count: 60", "size: 60", id="cluster: unknown field"),
        pytest.param("cluster", "name: edge", 'name: ""', id="cluster: no name"),
        pytest.param("sweep", "[alignup, ", "[best, ", id="sweep: unknown strategy"),
        pytest.param("sweep", "seeds: 2", "seeds: two", id="sweep: not a number"),
        pytest.param("sweep", "generate: training", "generate: x", id="sweep: unknown profile"),
        pytest.param("sweep", "load: 1.2", "load: 0", id="sweep: no load"),
        pytest.param("sweep", "workload:", "work:", id="sweep: no workload"),
        pytest.param("trace", "templates:", "template:", id="trace: unknown field"),
        pytest.param("trace", "requests:", "request:", id="trace: unknown field of a template"),
    ],
)
def test_reader_and_schema_reject_the_same(kind, before, after, accepts):
    assert before in TEXTS[kind]

    assert accepts(kind, TEXTS[kind].replace(before, after, 1)) == (False, False)


def kind_of(document) -> str:
    """Return the kind of a file of Alignup; empty for other files."""
    if not isinstance(document, dict):
        return ""
    if document.get("alignup") == "machine/v1":
        return "machine"
    return str(document["kind"]).lower() if document.get("apiVersion") == "alignup.dev/v1" else ""


def own_files() -> dict[Path, str]:
    paths = sorted((ROOT / "examples").rglob("*.yaml"))
    kinds = {path: kind_of(next(yaml.safe_load_all(path.read_text("utf-8")))) for path in paths}
    return {path: kind for path, kind in kinds.items() if kind}


def own_blocks() -> list[tuple[str, str, dict]]:
    """Return the files of Alignup in the code blocks of documents: page, kind, document."""
    blocks = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            document = next(yaml.safe_load_all(text))
            if (kind := kind_of(document)) in TYPES:
                blocks.append((page.name, kind, document))
    return blocks


@pytest.mark.parametrize("kind", TYPES)
def test_the_published_schemas_are_up_to_date(kind):
    assert (SCHEMAS / f"{kind}.json").read_text("utf-8") == in_process("schema", kind).stdout, "run make schemas"


@pytest.mark.parametrize(("path", "kind"), own_files().items(), ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_every_example_names_its_schema_in_the_first_line_and_is_valid(path, kind):
    text = path.read_text("utf-8")
    first = text.splitlines()[0]

    assert first.startswith(MODELINE)
    schema = (path.parent / first.removeprefix(MODELINE)).resolve()
    assert schema == SCHEMAS / f"{kind}.json"
    validator = jsonschema_rs.validator_for(json.loads(schema.read_text("utf-8")))
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(("page", "kind", "document"), own_blocks())
def test_the_files_in_documents_are_valid(page, kind, document):
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text("utf-8"))

    assert jsonschema_rs.is_valid(schema, document), page


def test_files_of_every_kind_are_checked():
    assert {*own_files().values()} == {"machine", "cluster", "sweep"}
    assert {kind for _, kind, _ in own_blocks()} >= {"machine", "cluster", "sweep"}

import os
import subprocess
import sys
from pathlib import Path

import pytest

from alignup.align.errors import SourceError
from alignup.machines import discover, load, machine_file, record, synthetic
from tests.discover import kernel

MACHINE = synthetic.parse("pack:2 numa:1 core:2 pu:2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return kernel.describe(MACHINE).write(tmp_path / "root")


def test_one_machine_in_every_form(root: Path, tmp_path: Path):
    found = discover(root)
    archive, described = tmp_path / "m.tar.gz", tmp_path / "m.yaml"
    record(root, archive)
    described.write_text(machine_file.dump(found))

    for source in (root, str(root), archive, str(archive), described, str(described), machine_file.dump_json(found)):
        assert load(source) == found


def test_synthetic_machines_as_texts_and_files(tmp_path: Path):
    path = tmp_path / "machine.txt"
    path.write_text("pack:2 numa:1 core:2 pu:2\n")

    assert load("pack:2 numa:1 core:2 pu:2") == load(path) == MACHINE


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(
            Path("no-such-machine.yaml"),
            "no-such-machine.yaml does not exist: expected a machine's directory, archive or description",
            id="a missing path",
        ),
        pytest.param(
            "no-such-machine.yaml",
            "it is not an existing file or directory, our YAML or JSON, cAdvisor's JSON or hwloc's XML;"
            " read as a synthetic machine",
            id="a text without a format",
        ),
        pytest.param("", "the text is empty", id="an empty text"),
        pytest.param("# nothing\n---\n", "the text is empty", id="only a comment"),
        pytest.param("{", "not valid JSON", id="half of JSON"),
        pytest.param(
            "{}", "does not describe a machine: expected a document with 'alignup: machine/v1'", id="empty JSON"
        ),
        pytest.param("[" * 100_000, "does not describe a machine", id="endless brackets"),
        pytest.param('{"a":' * 100_000, "not valid JSON", id="endless braces"),
        pytest.param("\n\n", "the text is empty", id="blank lines"),
        pytest.param("a\0b", "does not describe a machine", id="a NUL"),
    ],
)
def test_errors_list_what_was_tried(source, reason):
    with pytest.raises(SourceError) as raised:
        load(source)

    assert reason in str(raised.value)


def test_files_that_do_not_describe_a_machine(tmp_path: Path):
    path = tmp_path / "noise"
    for content, reason in (
        (b"\xff\xfe\x00noise", "neither an archive (tar, with gzip, bzip2, xz or zstd) nor text"),
        (b"", f"{path} is empty"),
        (
            b"pack:2 numa:0\n",
            f"{path} does not describe a machine: it is not our YAML or JSON, cAdvisor's JSON or hwloc's XML; read as",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceError) as raised:
            load(path)
        assert reason in str(raised.value)
    with pytest.raises(SourceError, match="has no online CPU"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="pipe is neither a file nor a directory"):
        load(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is not a directory"):
        discover(path)
    with pytest.raises(SourceError, match="is not a directory"):
        record(path, tmp_path / "x.tar.gz")


def test_this_machine_has_cpus():
    machine = discover()

    assert machine.cpus
    assert machine.kubelet_view().all_cpus


def test_discovery_imports_only_the_standard_library():
    code = (
        "import sys; from alignup.machines import discover; discover();"
        "print([name for name in ('yaml', 'msgspec', 'tarfile', 'subprocess') if name in sys.modules])"
    )

    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own code

    assert printed.strip() == "[]"

"""Machines from files, directories and texts, and devices declared in a line of text."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import MachineError, ParseError, SourceError
from alignup.align.machine import CadvisorNode, CadvisorReport, Cpu, Device, HugePages, Machine, NumaNode, PciDevice
from alignup.documents.machines import machine_from_document
from alignup.machines import discover, load, machine_file, record, synthetic
from alignup.machines.machine_source import DEVICE_EXAMPLE, add_devices, parse_devices
from alignup.machines.synthetic import parse as machine_of
from tests import strategies
from tests.discover import kernel

MACHINE = synthetic.parse("pack:2 numa:1 core:2 pu:2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return kernel.describe(MACHINE).write(tmp_path / "root")


def test_one_machine_in_every_form(root: Path, tmp_path: Path):
    discovered = discover(root)
    archive, described = tmp_path / "m.tar.gz", tmp_path / "m.yaml"
    record(root, archive)
    described.write_text(machine_file.dump(discovered))

    for source in (
        root,
        str(root),
        archive,
        str(archive),
        described,
        str(described),
        machine_file.dump_json(discovered),
    ):
        assert load(source) == discovered


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


GIB = 1 << 30

#: Everything odd in one machine.
ODD = Machine(
    cpus=(
        Cpu(8, core=2288, socket=-1, node=250),
        Cpu(40, core=5, socket=8442, node=None, cache=3),
        Cpu(103, core=5, socket=8442, node=4, cache=3),
    ),
    nodes=(NumaNode(4, memory=0), NumaNode(7, memory=GIB, hugepages=(HugePages(1 << 21, 3),)), NumaNode(250)),
    pci=(PciDevice("10000:00:04.0", 0x010802, 0x8086, 0, node=4, cpus=0), PciDevice("0000:00:00.0")),
    memory=5 * GIB,
    hugepages=(HugePages(16 * GIB, 0), HugePages(3000, 1)),
    offline=bits.of([9, 10]),
    report=CadvisorReport(
        cpus=(Cpu(8, core=8, socket=-1, node=-1),),
        num_cpus=20,
        num_sockets=0,
        nodes=(CadvisorNode(-1), CadvisorNode(7, 1, (HugePages(1 << 21, 0),), (21, 10))),
    ),
    gaps=("what a: b # sentence says", "“quoted”"),
).with_reported(
    (
        Device("example.com/nic", "a", nodes=bits.of([63, 250])),
        Device("example.com/nic", "b", nodes=0),
        Device("example.com/gpu", "5", nodes=None, healthy=False),
    )
)


@pytest.mark.parametrize("machine", [ODD, synthetic.parse("pack:2 numa:2 l3:2 core:4 pu:2")], ids=["odd", "synthetic"])
def test_a_written_machine_is_read_back(machine):
    assert machine_file.parse(machine_file.dump(machine)) == machine
    assert load(machine_file.dump(machine)) == machine
    assert load(machine_file.dump_json(machine)) == machine


@given(strategies.machines(max_id=255))
def test_any_machine_is_read_back(machine):
    assert machine_file.parse(machine_file.dump(machine)) == machine
    assert machine_from_document(json.loads(machine_file.dump_json(machine))) == machine


def test_a_machine_written_by_hand():
    text = """
        alignup: machine/v1
        cpus:
          - {socket: 0, node: 0, cores: "0,4 1,5"}
          - {socket: 1, node: 1, cores: 2}        # YAML takes this for a number
        nodes:
          - {id: 1, memory: 64Gi}
          - {id: 0, memory: 1Gi, hugepages: {2Mi: 512}}
        distances: [[10, 21], [21, 10]]
        pci: [{address: "0000:9d:00.0", class: 0x030200, vendor: "0x10de", node: 1}]
    """

    machine = load(dedent(text))

    assert [(cpu.id, cpu.core, cpu.socket) for cpu in machine.cpus] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 2, 1),
        (4, 0, 0),
        (5, 1, 0),
    ]
    assert machine.nodes == (NumaNode(0, GIB, (HugePages(1 << 21, 512),)), NumaNode(1, 64 * GIB))
    assert machine.pci == (PciDevice("0000:9d:00.0", 0x030200, 0x10DE, node=1),)
    assert machine.report is None


PLAIN = {"alignup": "machine/v1", "cpus": [{"socket": 0, "node": 0, "cores": "0-1"}], "nodes": [{"id": 0}]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"alignup": "machine/v9"}, "the format 'machine/v9' is unknown: expected 'machine/v1'", id="another format"
        ),
        pytest.param({"cpus": None}, "cpus: expected `array`, got `null`", id="no CPUs"),
        pytest.param({"cpus": [{"socket": 0, "cores": "0-"}]}, "invalid syntax", id="no list"),
        pytest.param({"cpus": [{"socket": 0, "cores": "9999999"}]}, "must be below", id="a CPU too high"),
        pytest.param(
            {"cpus": [{"socket": 0, "cores": "0 1", "numbers": "1"}]},
            "expected as many as cores, 2, not 1",
            id="numbers",
        ),
        pytest.param({"nodes": [{"id": 0, "memory": "much"}]}, "quantities must match", id="no quantity"),
        pytest.param(
            {"nodes": [{"id": 0, "distances": [10]}]}, "all of them under 'distances'", id="distances of a node"
        ),
        pytest.param(
            {"distances": [[10, 20]]}, "expected a row of 1 for each NUMA node", id="distances of other nodes"
        ),
        pytest.param({"sockets": 2}, "unknown field `sockets`", id="an unknown field"),
        pytest.param({"pci": [{"address": "a", "vendor": "zz"}]}, "'zz' is not a hexadecimal code", id="a code"),
    ],
)
def test_invalid_documents_are_errors(change, reason):
    with pytest.raises(SourceError, match=reason):
        load(json.dumps(PLAIN | change))


def test_contradictions_are_errors():
    with pytest.raises(MachineError, match="NUMA node 3 has CPUs 0-1, but the machine has no such node"):
        load(yaml.safe_dump(PLAIN | {"cpus": [{"socket": 0, "node": 3, "cores": "0-1"}]}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("alignup: machine/v1\ncpus: &a [*a]\n", "uses the YAML alias 'a'", id="an alias"),
        pytest.param("alignup: " + "[" * 9000 + "\n", "nested more than 32 levels deep", id="nesting"),
        pytest.param("alignup: machine/v1\ncpus: [\n", "not valid YAML", id="no YAML"),
        pytest.param("alignup: !!python/object:os.system x\n", "not valid YAML: could not determine", id="objects"),
        pytest.param(
            "kind: Pod\nmetadata:\n  name: x\n", "does not describe a machine: expected a document", id="something else"
        ),
        pytest.param("- 1\n- 2\n", "does not describe a machine", id="a list"),
    ],
)
def test_texts_that_do_not_describe_a_machine(text, reason):
    with pytest.raises(SourceError, match=reason):
        load(text)


def test_too_many_yaml_values_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_file, "MAX_YAML_VALUES", 20)

    with pytest.raises(SourceError, match="has more than 20 values and keys"):
        load("alignup: machine/v1\ncpus: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]\n")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"nodes": [{"id": 0}] * 1025}, "nodes: 1025 entries: expected at most 1024", id="nodes"),
        pytest.param(
            {"pci": [{"address": "0"}] * 16_385}, "pci: 16385 entries: expected at most 16384", id="PCI devices"
        ),
        pytest.param({"nodes": [{"id": 4096}]}, "NUMA node 4096 is not a number from 0 to 4095", id="a node number"),
        pytest.param({"memory": 1 << 63}, "memory: expected `int` <= 9223372036854775807", id="memory"),
        pytest.param({"alignup": 1 << 20_000}, "alignup: another format is unknown", id="a number as format"),
    ],
)
def test_machines_above_the_limits(changes, reason):
    with pytest.raises((SourceError, MachineError), match=reason):
        machine_from_document(PLAIN | changes)


def test_of_a_pci_device_that_is_listed_twice_the_first_is_used():
    pci = [{"address": "0000:00:01.0", "node": 0}, {"address": "0000:00:01.0", "node": 1}, {"address": "0000:00:02.0"}]

    machine = machine_from_document(PLAIN | {"pci": pci})

    assert [(device.address, device.node) for device in machine.pci] == [("0000:00:01.0", 0), ("0000:00:02.0", None)]
    assert machine.gaps == ("PCI device 0000:00:01.0 is listed 2 times; the first is used",)
    assert machine_file.parse(machine_file.dump(machine)) == machine


def test_the_order_of_a_document_does_not_matter():
    machine = synthetic.parse("numa:2 core:2 pu:2")
    turned = replace(machine, cpus=machine.cpus[::-1], nodes=machine.nodes[::-1])

    assert machine_file.parse(machine_file.dump(turned)) == machine


GPU = "example.com/gpu"


def places(devices: tuple[Device, ...]) -> list[tuple[str, str | None]]:
    return [(device.id, None if device.nodes is None else bits.show(device.nodes)) for device in devices]


def test_counts_and_nodes():
    devices = parse_devices(["example.com/gpu=2@0,1@2+3,1"])

    assert places(devices) == [("gpu-0", "0"), ("gpu-1", "0"), ("gpu-2", "2-3"), ("gpu-3", None)]
    assert {device.resource for device in devices} == {GPU}


def test_several_texts_may_declare_one_resource():
    devices = parse_devices(["example.com/gpu=1@0", "vendor.io/nic=1@0", "example.com/gpu=1@1"])

    assert places(devices) == [("gpu-0", "0"), ("nic-0", "0"), ("gpu-1", "1")]


def test_declared_devices_replace_the_machines_own():
    machine = add_devices(machine_of("numa:4 pu:1"), [DEVICE_EXAMPLE, "vendor.io/nic=1@3"])

    changed = add_devices(machine, ["example.com/gpu=1@0"])

    assert [(device.resource, device.id) for device in changed.devices] == [("vendor.io/nic", "nic-0"), (GPU, "gpu-0")]
    assert changed.checked() is changed


def test_zero_devices_can_be_declared():
    assert parse_devices(["example.com/gpu=0"]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("example.com/gpu", "has no number of devices", id="a name alone"),
        pytest.param("gpu=4@0", "is not a valid device resource", id="a name without a domain"),
        pytest.param("kubernetes.io/gpu=4@0", "is not a valid device resource", id="a kubernetes.io name"),
        pytest.param("example.com/gpu=four", "is not a device count", id="a number in words"),
        pytest.param("example.com/gpu=4@", "is not a device count", id="no node after the sign"),
        pytest.param("example.com/gpu=4@0-3", "is not a device count", id="a range of nodes"),
        pytest.param("example.com/gpu=-1@0", "is not a device count", id="a negative number"),
        pytest.param("example.com/gpu=4@0,", "is not a device count", id="a comma at the end"),
        pytest.param("example.com/gpu=999999@0", "more than 100000 devices", id="too many"),
        pytest.param("example.com/gpu=1@999999999", "names NUMA node 999999999", id="a node number that is too large"),
        pytest.param("example.com/gpu=1@7", "this machine has no NUMA node 7, only 0-1", id="an unknown node"),
    ],
)
def test_invalid_specs_are_rejected(text, message):
    with pytest.raises(ParseError, match=message):
        add_devices(machine_of("numa:2 pu:1"), [text])


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_rejected(text):
    try:
        devices = parse_devices([f"example.com/gpu={text}"])
    except ParseError:
        return
    assert all(device.resource == GPU for device in devices)

"""The PCIe tree of a real kernel: switches below root ports of several root complexes."""

import base64
import json
import subprocess
from itertools import combinations
from pathlib import Path

from alignup.machines import load, record_script
from e2e import disk
from e2e.guest import Node, Shape, missing, run
from e2e.marks import needs


def root_complex(name: str, *, bus: int, node: int) -> str:
    return f"pxb-pcie,id={name},bus_nr={bus},bus=pcie.0,numa_node={node}"


def root_port(name: str, bus: str, number: int) -> str:
    return f"pcie-root-port,id={name},bus={bus},chassis={number},slot={number},addr={number:#x}"


def downstream(name: str, bus: str, number: int) -> str:
    return f"xio3130-downstream,id={name},bus={bus},chassis={number},slot={number}"


def card(number: int, bus: str) -> str:
    """A network card, which the guest recognizes by the number of its subsystem."""
    return f"e1000e,bus={bus},romfile=,subsys_ven=0x1af4,subsys={number}"


#: A switch with two cards and a second switch below it; a second root port; a second root complex; a second NUMA node.
TREE = Shape(
    2,
    1,
    1,
    (Node(256, "0"), Node(256, "1")),
    devices=(
        root_complex("a", bus=0x40, node=0),
        root_port("a1", "a", 1),
        "x3130-upstream,id=up1,bus=a1",
        downstream("d1", "up1", 11),
        card(1, "d1"),
        downstream("d2", "up1", 12),
        card(2, "d2"),
        downstream("d3", "up1", 13),
        "x3130-upstream,id=up2,bus=d3",
        downstream("d4", "up2", 14),
        card(3, "d4"),
        root_port("a2", "a", 2),
        card(4, "a2"),
        root_complex("b", bus=0x80, node=0),
        root_port("b1", "b", 3),
        card(5, "b1"),
        root_complex("c", bus=0xA0, node=1),
        root_port("c1", "c", 4),
        card(6, "c1"),
    ),
)
LEVELS = {
    (1, 2): "PIX",
    (1, 3): "PXB",
    (2, 3): "PXB",
    **dict.fromkeys([(1, 4), (2, 4), (3, 4)], "PHB"),
    **dict.fromkeys([(1, 5), (2, 5), (3, 5), (4, 5)], "NODE"),
    **dict.fromkeys([(1, 6), (2, 6), (3, 6), (4, 6), (5, 6)], "SYS"),
}

SCRIPT = """
import base64, glob, json
from itertools import combinations
from alignup.machines import discover, record

numbers = {}
for path in glob.glob("/sys/bus/pci/devices/*"):
    if (Path(path) / "subsystem_vendor").read_text().strip() == "0x1af4":
        numbers[Path(path).name] = int((Path(path) / "subsystem_device").read_text(), 16)
record(Path("/"), Path("/tmp/machine.tar.gz"))
print(json.dumps(numbers))
locality = discover().locality
print(json.dumps([(a, b, locality.level(a, b)) for a, b in combinations(locality.devices, 2)]))
print(base64.b64encode(Path("/tmp/machine.tar.gz").read_bytes()).decode())
"""


@needs(missing())
def test_the_tree_of_a_guest_is_read(tmp_path: Path) -> None:
    numbers, written, recorded = run(TREE, SCRIPT, image=disk.make(tmp_path)).splitlines()[-3:]
    file = tmp_path / "machine.tar.gz"
    file.write_bytes(base64.b64decode(recorded))
    cards = {address: number for address, number in json.loads(numbers).items() if 1 <= number <= 6}
    by_number = {number: address for address, number in cards.items()}
    assert sorted(by_number) == [1, 2, 3, 4, 5, 6]

    live = {frozenset(pair): level for *pair, level in json.loads(written)}
    locality = load(file).locality

    for a, b in combinations(by_number, 2):
        pair, expected = (by_number[a], by_number[b]), LEVELS[min(a, b), max(a, b)]
        assert (a, b, live[frozenset(pair)], locality.level(*pair)) == (a, b, expected, expected)
    assert locality.switch(by_number[1]) == locality.switch(by_number[2]) != locality.switch(by_number[3])
    assert [locality.root(by_number[number]) for number in (1, 4, 5, 6)] == [
        "pci0000:40",
        "pci0000:40",
        "pci0000:80",
        "pci0000:a0",
    ]
    script = tmp_path / "script.tar.gz"
    with script.open("wb") as output:
        unpacked = tmp_path / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "-xzf", file, "-C", unpacked], check=True)
        text = record_script().replace("cd / &&", f"cd '{unpacked}' &&")
        subprocess.run(["sh", "-s"], input=text.encode(), stdout=output, check=True)
    assert load(script).pci == load(file).pci

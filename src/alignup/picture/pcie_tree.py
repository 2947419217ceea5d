"""The PCIe tree of a machine as lines of text, its links, and its matrix in the form of ``nvidia-smi topo -m``."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

from alignup.align import bits
from alignup.align.locality import DeviceKind, LinkKind, Locality
from alignup.align.machine import Machine, PciDevice
from alignup.picture.text_format import clean, pluralize, shorten

MAX_LINES = 64  #: of one tree
MAX_SIBLINGS = 16  #: devices of one kind in one place that are listed
MAX_COLUMNS = 64  #: of each kind in a matrix
_MAX_JOINED = 54  #: characters of a line that ends in a device

_Tree = dict[str, "_Tree"]


def draw_tree(locality: Locality, devices: Iterable[PciDevice]) -> tuple[str, ...]:
    """Return root complexes, switches and *devices*, indented; what is alone below another is on its line."""
    islands = {address: number for number, island in enumerate(locality.islands(), 1) for address in island}
    tree: _Tree = {}
    siblings: Counter[tuple[tuple[str, ...], DeviceKind]] = Counter()
    for device in devices:
        kind = locality.devices[device.address]
        path = device.path
        above = (path.root or "", *(f"switch {switch}" for switch in path.switches)) if path else ("no PCIe path",)
        branch = tuple(filter(None, above))
        siblings[branch, kind] += 1
        if siblings[branch, kind] <= MAX_SIBLINGS:
            mark = f" · island {islands[device.address]}" if device.address in islands else ""
            rail = "" if device.rail is None else f" · rail {device.rail}"
            _insert(tree, (*branch, f"{describe_device(device, kind)}{rail}{mark}"))
    for (branch, kind), count in siblings.items():
        if count > MAX_SIBLINGS:
            _insert(tree, (*branch, f"and {count - MAX_SIBLINGS} more {kind}"))
    lines = tuple(_lines(tree, ""))
    return (
        lines if len(lines) <= MAX_LINES else (*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more lines")
    )


def describe_device(device: PciDevice, kind: DeviceKind) -> str:
    """Return kind, names and address; the names of some devices begin with their kind."""
    names = "/".join(shorten(clean(name), 24) for name in device.names)
    head = names if names.startswith(kind) else f"{kind} {names}".rstrip()
    return f"{head} {clean(device.address)}"


def _insert(tree: _Tree, labels: Iterable[str]) -> None:
    for label in labels:
        tree = tree.setdefault(label, {})


def _lines(tree: _Tree, indent: str) -> Iterator[str]:
    for label, below in tree.items():
        line, children = label, below
        while len(children) == 1:
            ((child, grandchildren),) = children.items()
            if not grandchildren and len(indent) + len(line) + len(child) > _MAX_JOINED:
                break
            line, children = f"{line} → {child}", grandchildren
        yield indent + line
        yield from _lines(children, f"{indent}  ")


def describe_links(locality: Locality, machine: Machine) -> Iterator[str]:
    """Yield a sentence about each island of linked devices, and about links to CPUs."""
    for number, island in enumerate(locality.islands(), 1):
        pairs = list(combinations(island, 2)) if len(island) <= MAX_COLUMNS else []
        links = [link for pair in pairs if (link := locality.link(*pair))]
        texts = [str(link) for link in sorted(set(links), key=lambda link: link.count)]
        route = " to ".join(dict.fromkeys((texts[0], texts[-1]))) if texts else "linked"
        through = " through NVSwitch" if any(link.kind is LinkKind.NVSWITCH for link in links) else ""
        every = "between every two" if len(links) == len(pairs) else f"between {len(links)} of {len(pairs)} pairs"
        yield f"island {number}: {pluralize(len(island), 'device')}, {route} {every}{through}"
    to_cpu = Counter((link.kind, link.count) for link in machine.links if len(link.devices) == 1)
    for (kind, count), devices in to_cpu.items():
        yield f"{pluralize(count, f'{kind} link')} to the CPU from {pluralize(devices, 'device')}"


def draw_matrix(machine: Machine) -> list[str]:
    """Return the lines of the matrix of GPUs and network interfaces, with a legend."""
    locality = machine.locality
    labels: dict[str, str] = {}
    notes = []
    for kind in (DeviceKind.GPU, DeviceKind.NIC):
        addresses = [address for address, kind_of_device in locality.devices.items() if kind_of_device is kind]
        labels |= {address: f"{kind}{number}" for number, address in enumerate(addresses[:MAX_COLUMNS])}
        if len(addresses) > MAX_COLUMNS:
            notes.append(f"and {len(addresses) - MAX_COLUMNS} more {kind}")
    if not labels:
        return ["This machine has no GPUs and no network interfaces."]
    rows = [["", *labels.values(), "CPU Affinity", "NUMA Affinity"]]
    for address, name in labels.items():
        device = locality.pci[address]
        near = [bits.show(device.cpus) if device.cpus else "N/A", "N/A" if device.node is None else str(device.node)]
        is_gpu = locality.devices[address] is DeviceKind.GPU
        rows.append([name, *(_cell(locality, address, other) for other in labels), *(near if is_gpu else ())])
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{text:<{widths[column]}}" for column, text in enumerate(row)).rstrip() for row in rows]
    if locality.note or any("?" in row for row in rows):
        lines += ["", f"PCIe: {locality.note or 'cannot say, since NUMA nodes are unknown'}"]
    legend = {name: _legend(locality.pci[address]) for address, name in labels.items()}
    return [*lines, "", *notes, "Legend:", "", *(f"  {name}: {text}" for name, text in legend.items() if name != text)]


def _cell(locality: Locality, a: str, b: str) -> str:
    return "X" if a == b else str(locality.link(a, b) or locality.level(a, b) or "?")


def _legend(device: PciDevice) -> str:
    return " ".join((clean(device.address), *(clean(name) for name in device.names)))

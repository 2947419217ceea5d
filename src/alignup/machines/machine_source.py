"""Where a machine comes from: this system, or a file, directory or text that describes one.

Descriptions are our YAML and JSON, the ``MachineInfo`` of cAdvisor, hwloc's XML and synthetic strings. Devices of
machines that do not report theirs are declared in a line of text: ``example.com/gpu=4@0,4@1,1@2+3``. Four are near NUMA
node 0, four near node 1, and one near nodes 2 and 3 together; ``example.com/tpu=2`` are two without a location. They
are named after their resource: ``gpu-0``, ``gpu-1``, and so on.

The modules that read each format are imported where they are needed: most commands read one description, and a machine
from a line of text needs the standard library only.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from alignup.align import bits
from alignup.align.errors import ParseError, SourceError
from alignup.align.machine import MAX_DEVICES, MAX_NODE_ID, Device, Machine
from alignup.align.workload import names

# How much is read of a text. Limits of the machine itself are in ``align.machine``. All limits are above what
# the largest machines need, and keep the memory that any input takes below a gigabyte.
MAX_TEXT_BYTES = 16 << 20

DEVICE_EXAMPLE = "example.com/gpu=4@0,4@1,1@2+3"
_DEVICE_GROUP = re.compile(r"(?P<count>[0-9]{1,9})(?:@(?P<nodes>[0-9]{1,9}(?:\+[0-9]{1,9})*))?", re.ASCII)

#: The header of ``nvidia-smi topo -m``, or a line of ``ls -l /sys/bus/pci/devices``.
_DEVICES_ONLY = re.compile(r"\A(?:\x1b\[[0-9;]*m|\s)*GPU[0-9]|[0-9a-f]{2}\.[0-7] -> ")

#: The first bytes of a file that is compressed: with gzip, bzip2, xz or zstd.
GZIP, BZIP2, XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"


def discover(root: Path = Path("/")) -> Machine:
    """Return the machine whose ``/sys`` and ``/proc`` are below *root*: the running system, or a copy of its files.

    On the running system it includes the GPUs of NVIDIA's driver.
    """
    from alignup.machines import file_reader, system  # noqa: PLC0415 - see the top of the module

    if not root.is_dir():
        raise SourceError(f"{root} is not a directory: expected one that contains sys and proc")
    files = file_reader.FileReader(file_reader.DirectoryFiles(os.fspath(root).rstrip("/")))
    machine = system.read_machine(files, name=str(root))
    return system.add_gpus(machine, files) if root.resolve() == Path("/") else machine


def record_script() -> str:
    """Return a shell script that writes a recording of the machine it runs on to standard output, without Alignup."""
    return Path(__file__).with_name("record.sh").read_text("utf-8")


def record(root: Path, file: Path, *, kubelet_version: str = "") -> Machine:
    """Write the machine at *root* and the version of its kubelet to the archive *file*, and return it as read back."""
    from alignup.machines import archive  # noqa: PLC0415 - see the top of the module

    discover(root)  # fail before anything is written
    archive.record(root, file, kubelet_version=kubelet_version)
    return load(file)


def load(source: Path | str, *, devices_only: bool = False) -> Machine:
    """Return the machine in *source*: a directory, an archive or a description, as a path or as the text itself.

    With *devices_only*, a file that describes only devices gives a machine without CPUs, which can be shown.
    """
    if isinstance(source, str):
        is_text = "\n" in source or "\0" in source or len(source) > 4096 or not source.strip()
        if is_text or not os.path.lexists(source):
            return _parse_text(source, devices_only=devices_only)
    path = Path(source)
    if path.is_dir():
        return discover(path)
    if not path.is_file():
        problem = "is neither a file nor a directory" if os.path.lexists(path) else "does not exist"
        raise SourceError(f"{path} {problem}: expected a machine's directory, archive or description")
    try:
        with path.open("rb") as file:
            head = file.read(512)
            is_archive = head.startswith((GZIP, BZIP2, XZ, ZSTD)) or head[257:262] == b"ustar"
            text = b"" if is_archive else head + file.read(MAX_TEXT_BYTES + 1)
        if is_archive:
            from alignup.machines import archive, file_reader, system  # noqa: PLC0415 - see the top of the module

            return system.read_machine(file_reader.FileReader(archive.read_archive(path)), name=str(path))
        if len(text) > MAX_TEXT_BYTES:
            raise SourceError(f"{path} is not an archive, and longer than a description of {MAX_TEXT_BYTES >> 20} MiB")
        return _parse_text(text.decode(), path, devices_only=devices_only)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is neither an archive (tar, with gzip, bzip2, xz or zstd) nor text: {error}"
        ) from error


def _parse_text(text: str, path: Path | None = None, *, devices_only: bool = False) -> Machine:
    """Return the machine in a text, read from *path* if there is one; the first character shows the format."""
    name = "the text" if path is None else str(path)
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        raise SourceError(f"{name} is empty: expected the description of a machine")
    if start.startswith("<") or _DEVICES_ONLY.search(start[:10_000]):
        from alignup.machines import device_links  # noqa: PLC0415 - see the top of the module

        if described_machine := device_links.parse(text, name=name):
            if not devices_only:
                advice = "add it to a machine with 'alignup machine show MACHINE --links FILE'"
                raise SourceError(f"{name} describes devices, but no CPUs: {advice}")
            return described_machine
    if start.startswith("<"):
        from alignup.machines import hwloc_xml  # noqa: PLC0415 - see the top of the module

        return hwloc_xml.parse(text, name=name)
    if "\n" in start.strip() or start.startswith(("alignup:", "{")):
        from alignup.machines import machine_file  # noqa: PLC0415 - see the top of the module

        return (machine_file.parse_json if start.startswith("{") else machine_file.parse)(text, name=name)
    from alignup.machines import synthetic  # noqa: PLC0415 - see the top of the module

    try:
        return synthetic.parse(start.strip())
    except ParseError as error:
        formats = "our YAML or JSON, cAdvisor's JSON or hwloc's XML"
        raise SourceError(
            f"{name} does not describe a machine: it is not"
            f" {'an existing file or directory, ' if path is None else ''}{formats};"
            f" read as a synthetic machine: {str(error)[:500]}"
        ) from error


def add_devices(machine: Machine, texts: Iterable[str]) -> Machine:
    """Return *machine* with the devices of *texts*, which replace its devices of the same resources."""
    declared_devices = parse_devices(texts)
    node_ids = {node.id for node in machine.nodes}
    for device in declared_devices:
        unknown_nodes = [node for node in bits.members(device.nodes or 0) if node not in node_ids]
        if unknown_nodes:
            available = bits.show(bits.of(node_ids))
            raise ParseError(f"{device.resource}: this machine has no NUMA node {unknown_nodes[0]}, only {available}")
    resources = {device.resource for device in declared_devices}
    others = (device for device in machine.devices if device.resource not in resources)
    return machine.with_reported((*others, *declared_devices))


def parse_devices(texts: Iterable[str]) -> tuple[Device, ...]:
    """Return the devices of *texts*; several texts may declare one resource."""
    devices: list[Device] = []
    counts: dict[str, int] = {}
    for text in texts:
        resource, equals, groups = text.partition("=")
        if not equals:
            raise ParseError(f"{bits.quote(text)} has no number of devices; write it like {DEVICE_EXAMPLE}")
        faults = "; ".join(names.qualified_problems(resource))
        if not names.is_extended(resource):
            faults = "it needs a domain other than kubernetes.io, as in example.com/gpu"
        if faults:
            raise ParseError(f"{bits.quote(resource)} is not a valid device resource: {faults}")
        for group in groups.split(","):
            first = counts.get(resource, 0)
            devices += _parse_group(resource, group, first=first, most=MAX_DEVICES - len(devices))
            counts[resource] = sum(device.resource == resource for device in devices)
    return tuple(devices)


def _parse_group(resource: str, text: str, *, first: int, most: int) -> list[Device]:
    group = _DEVICE_GROUP.fullmatch(text)
    if not group:
        problem = f"{bits.quote(text)} is not a device count with NUMA nodes"
        raise ParseError(f"{resource}: {problem}; write it like {DEVICE_EXAMPLE}")
    count = int(group["count"])
    if count > most:
        raise ParseError(f"{resource}: more than {MAX_DEVICES} devices in total")
    nodes = None
    if group["nodes"]:
        ids = [int(id_) for id_ in group["nodes"].split("+")]
        if max(ids) >= MAX_NODE_ID:
            raise ParseError(f"{resource}: {bits.quote(text)} names NUMA node {max(ids)}, which no machine has")
        nodes = bits.of(ids)
    name = resource.rpartition("/")[2]
    return [Device(resource, f"{name}-{number}", nodes) for number in range(first, first + count)]

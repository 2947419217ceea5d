"""Devices declared in a line of text, for machines that do not report theirs: ``example.com/gpu=4@0,4@1,1@2+3``.

Four are near NUMA node 0, four near node 1, and one near nodes 2 and 3 together; ``example.com/tpu=2`` are two without
a location. They are named after their resource: ``gpu-0``, ``gpu-1``, and so on.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.align.machine import MAX_DEVICES, MAX_NODE_ID, Device, Machine
from alignup.align.workload import names

EXAMPLE = "example.com/gpu=4@0,4@1,1@2+3"

_GROUP = re.compile(r"(?P<count>[0-9]{1,9})(?:@(?P<nodes>[0-9]{1,9}(?:\+[0-9]{1,9})*))?", re.ASCII)


def add_devices(machine: Machine, texts: Iterable[str]) -> Machine:
    """*machine* with the devices of *texts*, which replace its own devices of the same resources."""
    declared = parse(texts)
    known = {node.id for node in machine.nodes}
    for device in declared:
        unknown = [node for node in bits.members(device.nodes or 0) if node not in known]
        if unknown:
            available = bits.show(bits.of(known))
            raise ParseError(f"{device.resource}: this machine has no NUMA node {unknown[0]}, only {available}")
    resources = {device.resource for device in declared}
    kept = (device for device in machine.devices if device.resource not in resources)
    return replace(machine, devices=(*kept, *declared))


def parse(texts: Iterable[str]) -> tuple[Device, ...]:
    """The devices of *texts*; several texts may declare one resource."""
    found: list[Device] = []
    counts: dict[str, int] = {}
    for text in texts:
        resource, equals, groups = text.partition("=")
        if not equals:
            raise ParseError(f"{bits.quote(text)} has no number of devices; write it like {EXAMPLE}")
        faults = "; ".join(names.qualified_problems(resource))
        if not names.is_extended(resource):
            faults = "it needs a domain other than kubernetes.io, as in example.com/gpu"
        if faults:
            raise ParseError(f"{bits.quote(resource)} is not a valid device resource: {faults}")
        for group in groups.split(","):
            own = _group(resource, group, after=counts.get(resource, 0), room=MAX_DEVICES - len(found))
            counts[resource] = counts.get(resource, 0) + len(own)
            found += own
    return tuple(found)


def _group(resource: str, text: str, *, after: int, room: int) -> list[Device]:
    shape = _GROUP.fullmatch(text)
    if not shape:
        what = f"{bits.quote(text)} is not a device count with NUMA nodes"
        raise ParseError(f"{resource}: {what}; write it like {EXAMPLE}")
    count = int(shape["count"])
    if count > room:
        raise ParseError(f"{resource}: more than {MAX_DEVICES} devices in total")
    nodes = None
    if shape["nodes"]:
        ids = [int(id_) for id_ in shape["nodes"].split("+")]
        if max(ids) >= MAX_NODE_ID:
            raise ParseError(f"{resource}: {bits.quote(text)} names NUMA node {max(ids)}, which no machine has")
        nodes = bits.of(ids)
    name = resource.rpartition("/")[2]
    return [Device(resource, f"{name}-{number}", nodes) for number in range(after, after + count)]

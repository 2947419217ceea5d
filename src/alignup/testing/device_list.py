"""Devices of a test plugin as text: ``4@0,4@1,1@2+3``.

That is four devices near NUMA node 0, four near node 1, and one near nodes 2 and 3. ``2`` are two devices without
topology, ``2@`` two whose topology has no nodes. Devices are named after their
resource: ``gpu-0``, ``gpu-1`` and so on.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices import natural_sort_key
from alignup.align.errors import ParseError
from alignup.align.machine import Device

_GROUP = re.compile(r"(?P<count>[0-9]{1,6})(?:@(?P<nodes>[0-9]{1,4}(?:\+[0-9]{1,4})*|))?", re.ASCII)


class Preference(StrEnum):
    """Which devices a plugin returns from GetPreferredAllocation."""

    NONE = "none"  #: it does not implement the call
    LOWEST = "lowest"
    HIGHEST = "highest"

    def choose(self, available: Sequence[str], *, must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """Return *size* of the *available* device ids, those of *must_include* first."""
        rest = set(available).difference(must_include)
        ordered = sorted(rest, key=natural_sort_key, reverse=self is Preference.HIGHEST)
        return (*must_include, *ordered)[:size]


def parse_device_list(resource: str, text: str) -> tuple[Device, ...]:
    name = resource.rpartition("/")[2]
    devices: list[Device] = []
    for group in text.split(",") if text else ():
        match = _GROUP.fullmatch(group)
        if not match:
            raise ParseError(f"{bits.quote(group)} is not a device list; write it like 4@0,4@1,1@2+3")
        first, nodes = len(devices), _nodes(match["nodes"])
        devices += [Device(resource, f"{name}-{number}", nodes) for number in range(first, first + int(match["count"]))]
    return tuple(devices)


def _nodes(text: str | None) -> NodeSet | None:
    if text is None:
        return None
    return bits.of(int(node) for node in text.split("+")) if text else 0

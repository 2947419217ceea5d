"""What a plugin for tests offers, in a line of text: ``4@0,4@1,1@2+3``.

Four devices near NUMA node 0, four near node 1 and one near nodes 2 and 3 together; ``2`` are two that say nothing of
where they are, and ``2@`` two that say they are near no node. They are called by the end of their resource's name and a
number: ``gpu-0``, ``gpu-1``, and so on.
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
    """Which devices a plugin prefers, when it is asked."""

    NONE = "none"  #: it does not want to be asked
    LOWEST = "lowest"
    HIGHEST = "highest"

    def choose(self, available: Sequence[str], *, must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """*size* of the *available* devices, those of *must_include* first."""
        rest = sorted(set(available).difference(must_include), key=natural_sort_key, reverse=self is Preference.HIGHEST)
        return (*must_include, *rest)[:size]


def parse_device_list(resource: str, text: str) -> tuple[Device, ...]:
    """The devices *text* tells of; the empty text is none."""
    name = resource.rpartition("/")[2]
    found: list[Device] = []
    for group in text.split(",") if text else ():
        shape = _GROUP.fullmatch(group)
        if not shape:
            raise ParseError(f"{bits.quote(group)} is no count of devices; write it like 4@0,4@1,1@2+3")
        first, nodes = len(found), _nodes(shape["nodes"])
        found += [Device(resource, f"{name}-{number}", nodes) for number in range(first, first + int(shape["count"]))]
    return tuple(found)


def _nodes(text: str | None) -> NodeSet | None:
    """``None``: nothing is said of them."""
    if text is None:
        return None
    return bits.of(int(node) for node in text.split("+")) if text else 0

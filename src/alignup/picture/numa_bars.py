"""Bars of a host: a column for each NUMA node, small enough to compare thousands of hosts."""

from collections.abc import Sequence
from html import escape
from operator import add
from typing import NamedTuple

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.workload.names import CPU, MARKER, MEMORY
from alignup.picture.occupancy import format_amount
from alignup.picture.text_format import clean, shorten
from alignup.placement.free_capacity import largest_requests

_HEIGHT, _GAP = 9, 3
_MAX_WIDTH, _ALL_WIDTH = 120, 272  #: of a bar, and of all beside each other
_MAX_NODES, _MAX_BARS = 8, 5


class ResourceBar(NamedTuple):
    """One NUMA node's part of a resource, divided by use; the parts add up to the total."""

    resource: str
    reserved: int = 0
    held: int = 0
    stranded: int = 0  #: free, but no aligned container can get it
    free: int = 0

    @property
    def total(self) -> int:
        return self.reserved + self.held + self.stranded + self.free

    @property
    def text(self) -> str:
        amounts = {"held": self.held, "reserved": self.reserved, "stranded": self.stranded, "free": self.free}
        parts = [f"{format_amount(self.resource, amount)} {name}" for name, amount in amounts.items() if amount]
        return f"{clean(self.resource)} {format_amount(self.resource, self.total)}: {', '.join(parts)}"


def add_bars(bar: ResourceBar, other: ResourceBar) -> ResourceBar:
    """Return the sum of two bars of one resource."""
    return ResourceBar(bar.resource, *map(add, bar[1:], other[1:]))


class NumaBars(NamedTuple):
    node: int
    bars: tuple[ResourceBar, ...]


def measure_bars(host: Host) -> tuple[NumaBars, ...]:
    """Return what the managers of a host have on each NUMA node: CPUs, memory, and devices with topology."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    exclusive = host.cpus.allocatable
    offers = largest_requests(host)
    claimed = host.ledger.claims.count_by_node(host.ledger.pods) if host.ledger.claims else {}
    nodes = []
    for node in bits.members(host.view.all_nodes):
        offered, bars = offers[node], []
        node_cpus = host.view.node_cpus.get(node, 0)
        reserved = (node_cpus & cpus.reserved).bit_count()
        held = (node_cpus & exclusive & ~cpus.shared & ~cpus.reserved).bit_count()
        free = node_cpus.bit_count() - reserved - held
        usable = min(free, offered.get(CPU, free))
        bars.append(ResourceBar(CPU, reserved, held, free - usable if exclusive else 0, usable if exclusive else free))
        for type_, table in memory.nodes[node].tables.items() if node in memory.nodes else ():
            if table.total:
                bars.append(ResourceBar(type_, table.total - table.allocatable, table.reserved, 0, table.free))
        without_room = (exclusive and not offered[CPU]) or (bool(memory.nodes) and not offered.get(MEMORY))
        for resource, inventory in sorted(devices.inventories.items()):
            here = inventory.on.get(node, 0) if inventory.placed and resource != MARKER else 0
            if here:
                left = (devices.free[resource] & here).bit_count()
                stranded = left if without_room else 0
                bars.append(ResourceBar(resource, 0, here.bit_count() - left, stranded, left - stranded))
        bars += [ResourceBar(name, 0, count - left, 0, left) for name, (count, left) in claimed.get(node, {}).items()]
        nodes.append(NumaBars(node, tuple(bars)))
    return tuple(nodes)


def draw_bars(nodes: Sequence[NumaBars], *, name: str) -> str:
    """Draw the bars as SVG inside a page; *name* is for screen readers."""
    shown = nodes[:_MAX_NODES]
    rows = min(max((len(node.bars) for node in shown), default=0), _MAX_BARS)
    width = min(_MAX_WIDTH, _ALL_WIDTH // max(len(shown), 1) - 2 * _GAP)
    across, down = len(shown) * (width + 2 * _GAP), (rows + 1) * (_HEIGHT + _GAP) + _GAP
    size = f'width="{across}" height="{down}" viewBox="0 0 {across} {down}"'
    parts = [f'<svg class="alignup" role="img" aria-label="{escape(name)}" {size}>']
    for column, node in enumerate(shown):
        left = column * (width + 2 * _GAP) + _GAP
        parts.append(f'<text class="dim" x="{left}" y="9" font-size="9">{node.node}</text>')
        for line, bar in enumerate(node.bars[:_MAX_BARS]):
            parts += _bar(bar, (left, (line + 1) * (_HEIGHT + _GAP)), width)
    if len(nodes) > len(shown):
        parts.append(f"<desc>and {len(nodes) - len(shown)} more NUMA nodes</desc>")
    return "".join([*parts, "</svg>"])


def describe_bars(nodes: Sequence[NumaBars]) -> str:
    """Describe the bars in words."""
    return "; ".join(f"NUMA node {node.node}: {', '.join(bar.text for bar in node.bars)}" for node in nodes)


def _bar(bar: ResourceBar, at: tuple[int, int], width: int) -> list[str]:
    left, top = at
    title = escape(shorten(bar.text, 120))
    parts = [f'<g><title>{title}</title><rect class="free" x="{left}" y="{top}" width="{width}" height="{_HEIGHT}"/>']
    begin = 0
    for style, amount in (("reserved", bar.reserved), ("held", bar.held), ("stranded", bar.stranded)):
        if amount and bar.total:
            start, end = width * begin / bar.total, width * (begin + amount) / bar.total
            shape = f'x="{left + start:.1f}" y="{top}" width="{end - start:.1f}" height="{_HEIGHT}"'
            parts.append(f'<rect class="{style}" {shape}/>')
            if style == "stranded":  # not by color alone
                parts.append(f'<text x="{left + start + 1:.1f}" y="{top + 8}" font-size="8">!</text>')
        begin += amount
    return [*parts, "</g>"]

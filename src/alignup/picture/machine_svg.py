"""A machine as one self-contained SVG file, for light and dark mode, with a text description.

Machines with some hundred CPUs show every CPU number, machines with some thousand show every CPU. Beyond that, NUMA
nodes have bars, and equal nodes share a box.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.picture.machine_layout import CoreGroup, DeviceGroup, DistanceTable, MachineLayout, NodeBox, layout_machine
from alignup.picture.occupancy import Holder, MemoryBar, Occupancy, UseInfo, UseState, format_block
from alignup.picture.svg_elements import (
    Drawable,
    Segment,
    bar,
    block,
    flow,
    framed,
    grid,
    label,
    row,
    stack,
    svg_document,
    svg_inline,
)
from alignup.picture.text_format import clean, format_bits, format_ids, format_size, pluralize, shorten, width_in_em

_MAX_NUMBERED, _MAX_SHOWN = 512, 4096  #: the most CPUs that are shown with numbers, or at all
_MAX_BOXES = 64  #: the most boxes that are drawn one by one
_MAX_DESCRIBED = 16
_MAX_GAPS = 8
_MAX_MEMORY_HOLDERS = 100  #: the most pods that are listed although they hold only memory
_PAGE_WIDTH = 1540.0
_MIN_WIDTH = 300.0  #: of a NUMA node
_THINNEST = 0.005  #: of a bar: a pod that holds less has no segment of its own
_LARGE = 700.0  #: a picture that may fill a page alone
_WIDE = 420.0  #: the same in a page, where a picture becomes as wide as there is room


class MachineParts(NamedTuple):
    """A machine as several pictures for a page, which has the style sheet and lists the pods itself."""

    layout: MachineLayout
    pictures: tuple[str, ...]  #: SVG: a socket or a NUMA node each, then what is outside of them


def draw_svg(machine: Machine, ledger: Ledger | None = None) -> str:
    layout = layout_machine(machine, ledger)
    return svg_document(stack(_page(layout), 12), title=layout.title, description=" ".join(_sentences(layout)))


def draw_parts(
    machine: Machine, ledger: Ledger | None = None, *, stranded: Collection[tuple[int, str]] = ()
) -> MachineParts:
    """Return the parts of the picture; a page can put them beside each other or below each other.

    What is unused at *stranded* places, NUMA nodes and resources, is marked.
    """
    layout = layout_machine(machine, ledger)
    layout = replace(layout, occupancy=layout.occupancy.with_stranded(stranded, machine)) if stranded else layout
    painter = _Painter(layout, least=_WIDE)
    names = [", ".join([frame.name, *(box.name for box in frame.boxes)]) for frame in layout.frames]
    elements = painter.with_cpus()
    if len(elements) != len(names):  # equal NUMA nodes share a box
        names = [f"NUMA nodes, part {number + 1}" for number in range(len(elements))]
    around = list(painter.outside_sockets())
    others = [f"Other parts of the machine, part {number + 1}" for number in range(len(around))]
    pictures = [
        *map(svg_inline, elements, names, ["large" if part.width > _LARGE else "" for part in elements]),
        *(svg_inline(*part, "small") for part in zip(around, others, strict=True)),
    ]
    return MachineParts(layout, tuple(pictures))


def _page(layout: MachineLayout) -> Iterator[Drawable]:
    yield label(layout.title, 18, style="strong")
    if layout.facts:
        yield flow((label(fact, 13, style="dim") for fact in layout.facts), _PAGE_WIDTH, gap=24)
    painter = _Painter(layout)
    with_cpus = flow(painter.with_cpus(), _PAGE_WIDTH, gap=12)
    yield with_cpus
    yield flow(painter.outside_sockets(), max(with_cpus.width, _PAGE_WIDTH * 0.6), gap=12)
    if layout.occupancy.known:
        yield _section("Pods and what they hold", stack(_legend(layout), 6))


def _section(title: str, body: Drawable) -> Drawable:
    return framed(label(title, 13, style="strong"), body, style="frame")


class _Painter:
    def __init__(self, layout: MachineLayout, *, least: float = _MIN_WIDTH) -> None:
        self._layout = layout
        self._occupancy = layout.occupancy
        self._least = least
        self._total = sum(box.cpus.bit_count() for box in layout.boxes)
        #: of the largest CPU number; 0: no numbers
        self._digits = len(str(max(layout.cpus.bit_length() - 1, 0))) if self._total <= _MAX_NUMBERED else 0

    def with_cpus(self) -> list[Drawable]:
        """Draw sockets around their nodes, all of one size; a single node shares the box with its sockets."""
        layout = self._layout
        if self._total > _MAX_SHOWN or len(layout.boxes) > _MAX_BOXES:
            return list(map(self._folded, layout.fold(layout.boxes)))
        inside = []
        for frame in layout.frames:
            prefix = f"{frame.name} · " if len(frame.boxes) == 1 else ""
            inside.append([self._box(box, prefix + box.name) for box in frame.boxes])
        widest = max((box.width for boxes in inside for box in boxes), default=0)
        elements = []
        for frame, boxes in zip(layout.frames, inside, strict=True):
            wide_boxes = [box._replace(width=widest) for box in boxes]
            if len(wide_boxes) == 1:
                elements.append(wide_boxes[0])
            else:
                fit = min(int(_PAGE_WIDTH / (widest + 12)), 2 if len(wide_boxes) <= 4 else 4)
                across = _columns(len(wide_boxes), max(1, fit))
                elements.append(
                    framed(label(frame.name, 14, style="strong"), grid(wide_boxes, across, gap=10), style="frame")
                )
        return elements

    def outside_sockets(self) -> Iterator[Drawable]:
        layout = self._layout
        if layout.nodes_without_cpus:
            name = "NUMA nodes without CPUs" if layout.boxes else "NUMA nodes"
            yield _section(name, flow(self._nodes_without_cpus(), _PAGE_WIDTH * 0.6 - 30, gap=8))
        if layout.unplaced_devices or layout.pci or layout.tree:
            parts: list[Drawable] = []
            for description, device_groups in layout.unplaced_devices:
                parts += [label(description, style="dim"), *self._devices(device_groups)]
            parts += [*_tree(layout.tree), *(label(f"PCI: {text}", 11) for text in layout.pci)]
            yield _section("Devices near several NUMA nodes, or none", stack(parts))
        if layout.links:
            yield _section("Links between devices", stack([label(shorten(text, 120), 11) for text in layout.links]))
        if layout.table and len(layout.table.groups) != 1:
            yield _section("Distances", _distances(layout.table))
        if layout.gaps:
            lines = [label(shorten(clean(gap), 120), 11) for gap in layout.gaps[:_MAX_GAPS]]
            if len(layout.gaps) > _MAX_GAPS:
                lines.append(label(f"and {len(layout.gaps) - _MAX_GAPS} more", 11, style="dim"))
            yield _section("Unknown", stack(lines))

    def _folded(self, group: Sequence[NodeBox]) -> Drawable:
        first, prefix = group[0], "each: " if len(group) > 1 else ""
        cpus = bits.union(box.cpus for box in group)
        ids = [box.node.id for box in group if box.node]
        sockets = format_ids("socket", {socket for box in group for socket in box.sockets})
        times = f"{len(first.core_groups)} times " if len(first.core_groups) > 1 else ""
        split = self._occupancy.split(bits.members(cpus)).items()
        strip = bar([_segment(use, use_cpus.bit_count() / cpus.bit_count()) for use, use_cpus in split])
        parts = [
            label(f"{sockets}: CPUs {shorten(format_bits(cpus), 40)}"),
            label(f"{prefix}{times}{first.core_groups[0].shape}"),
            strip,
            *self._uses(cpus, 560),
            *([label(f"{prefix}{first.memory}")] if len(group) > 1 else self._memory(first, 560)),
            *self._devices(first.device_groups),
        ]
        title = format_ids("NUMA node", ids) if ids else first.name
        return framed(label(title, 13, style="strong"), stack(parts), style="node")

    def _nodes_without_cpus(self) -> list[Drawable]:
        """Draw nodes without CPUs; equal ones share a box if they are many or have no memory."""
        many = len(self._layout.nodes_without_cpus) > _MAX_BOXES
        elements: list[Drawable] = []
        for run in self._layout.fold(self._layout.nodes_without_cpus):
            empty = run[0].node is not None and not run[0].node.memory
            groups = [run] if many or empty else [(box,) for box in run]
            elements += map(self._node_without_cpus, groups)
        widest = max(element.width for element in elements)
        return [element._replace(width=widest) for element in elements]

    def _node_without_cpus(self, group: Sequence[NodeBox]) -> Drawable:
        first = group[0]
        ids = [box.node.id for box in group if box.node]
        parts = [
            *([label(f"{len(group)} nodes", 11)] if len(group) > 1 else []),
            *([label(first.nearest, 11, style="dim")] if first.nearest else []),
            *([label(first.memory, 11)] if len(group) > 1 else self._memory(first, 110)),
            *self._devices(first.device_groups),
            *_tree(first.tree),
            *(label(f"PCI: {text}", 11) for text in first.pci),
        ]
        return framed(label(format_ids("node", ids), 12, style="strong"), stack(parts), style="bare", padding=7)

    def _devices(self, device_groups: Iterable[DeviceGroup], most: float = 560) -> Iterator[Drawable]:
        """Draw devices by resource, with id and holder; of many only the held and unhealthy ones."""
        for group in device_groups:
            shown_devices = self._occupancy.listed(group.devices)
            rest = len(group.devices) - len(shown_devices)
            pills = []
            for device in shown_devices:
                use = self._occupancy.of_device(device)
                name = shorten(clean(device.id), 28) + (f" · {use.mark}" if use.mark else "")
                name += "" if device.healthy else " · unhealthy"
                title = f"{clean(device.resource)} {clean(device.id)}, {clean(use.description)}"
                data = {"device": clean(device.id), "title": title} | _holder_data(use)
                pills.append(block([name], style=use.style, data=data))
            if rest:
                style = UseInfo(UseState.FREE if self._occupancy.known else UseState.PLAIN).style
                text = f"{rest} {'more' if shown_devices else 'devices'}"
                pills.append(block([text], style=style, data={"devices": str(rest)}))
            yield stack([label(shorten(clean(group.resource), 40), 11, style="dim"), flow(pills, most)], 2)

    def _box(self, box: NodeBox, title: str) -> Drawable:
        cpus = self._cpus(box)
        most = max(self._least, cpus.width)
        parts = [
            cpus,
            *self._memory(box, most),
            *self._devices(box.device_groups, most),
            *_tree(box.tree),
            *(flow((label(word, 11) for word in f"PCI: {text}".split()), most, gap=7, across=1) for text in box.pci),
        ]
        element = framed(label(title, 13, style="strong"), stack(parts, 8), style="node")
        return element._replace(width=max(element.width, self._least + 20))

    def _cpus(self, box: NodeBox) -> Drawable:
        groups = [self._core_group(group, self._least / len(box.core_groups)) for group in box.core_groups]
        widest = max((group.width for group in groups), default=0)
        most = max(widest, 460.0)
        across = _columns(len(groups), max(1, int(most / (widest + 14))))
        cpu_grid = grid([group._replace(width=widest) for group in groups], across, gap=12)
        return stack([cpu_grid, *self._uses(box.cpus, max(most, self._least))], 6)

    def _uses(self, cpus: CpuSet, most: float) -> Iterator[Drawable]:
        """Draw how many CPUs have each use, if that is known."""
        if self._occupancy.known:
            split = self._occupancy.split(bits.members(cpus)).items()
            labels = (label(f"{use.label} {use_cpus.bit_count()}", 11, style="dim") for use, use_cpus in split)
            yield flow(labels, most, gap=14)

    def _core_group(self, core_group: CoreGroup, least: float) -> Drawable:
        gap = 0 if self._digits else 1  # between the threads of a core
        cores = [row((self._cpu(cpu, core.id) for cpu in core.cpus), gap) for core in core_group.cores]
        widest = max(core.width for core in cores)
        ideal = sqrt(3 * len(cores) * cores[0].height / widest)
        across = max(1 << max(0, (int(ideal) - 1).bit_length()), int((least + 4) / (widest + 4)))
        across = min(across, max(1, int(600 / widest)), len(cores))
        wide_cores = [core._replace(width=widest) for core in cores]
        body = grid(wide_cores, _columns(len(cores), across), gap=4 if self._digits else 3)
        name = core_group.name
        if not self._digits:
            name += f"{': ' if name else ''}CPUs {shorten(format_bits(core_group.cpus), 24)}"
        return stack([label(name, 11, style="dim"), body], 3) if name else body

    def _cpu(self, cpu: int, core: int) -> Drawable:
        use = self._occupancy.of_cpu(cpu)
        title = f"CPU {cpu}, core {core}" + ("" if use.state is UseState.PLAIN else f", {clean(use.description)}")
        if not self._digits:
            data = {"cpu": str(cpu)} | ({"title": title} if use.holder else {}) | _holder_data(use)
            return block([], style=use.style, corner=1, data=data)._replace(width=8, height=12)
        lines = [str(cpu), use.mark or " "] if self._occupancy.known else [str(cpu)]
        element = block(lines, style=use.style, data={"cpu": str(cpu), "title": title} | _holder_data(use))
        return element._replace(width=max(element.width, width_in_em("0") * 11 * max(2, self._digits) + 10))

    def _memory(self, box: NodeBox, most: float) -> Iterator[Drawable]:
        if box.node is None:
            return
        bars = self._occupancy.bars(box.node)
        if not bars or not box.node.memory:
            yield label(box.memory, 11)
            return
        for memory in bars:
            words = [f"huge pages {memory.name}" if memory.page else f"memory {memory.name}"]
            words += [f"{format_size(amount)} {name}" for name, amount in memory.parts]
            text = flow((label(word, 11) for word in words), most, gap=12, across=1)
            segments = list(_memory_segments(memory))
            yield stack([text, bar(segments)] if segments else [text], 2)


def _memory_segments(memory: MemoryBar) -> Iterator[Segment]:
    for name, amount in memory.parts:
        if name != "held":
            style = "huge" if name == "in huge pages" else name
            title = f"{format_size(amount)} {name}"
            yield Segment(style, amount / memory.total, {"title": title}, hatched=name == "reserved")
            continue
        rest, others = amount, 0
        for holder, size in memory.held:
            size = min(size, rest)  # noqa: PLW2901 - a reservation larger than the node cuts off what pods hold
            if holder is None or size < memory.total * _THINNEST:
                others += 1
                continue
            rest -= size
            data = {"title": f"{format_size(size)} held by {clean(holder.name)}", "holder": holder.key}
            yield Segment(f"holder{holder.index % 8}", size / memory.total, data, mark=holder.key)
        if rest:
            title = f"{format_size(rest)} held by {pluralize(others, 'other pod')}" if others else "held"
            yield Segment("held", rest / memory.total, {"title": title})


def _tree(lines: Sequence[str]) -> Iterator[Drawable]:
    """Draw a PCIe tree; SVG joins ordinary blanks."""
    if lines:
        texts = (shorten(line, 90).replace("  ", "\u00a0\u00a0\u00a0\u00a0") for line in lines)
        yield stack([label("PCIe", 11, style="dim"), *(label(text, 11) for text in texts)], 1)


def _segment(use: UseInfo, share: float) -> Segment:
    return Segment(use.style, share, _holder_data(use), use.mark, hatched=use.state is UseState.RESERVED)


def _holder_data(use: UseInfo) -> dict[str, str]:
    return {"holder": use.holder.key} if use.holder else {}


def _columns(count: int, fit: int) -> int:
    """Return how many elements to put in a row if *fit* fit: a number that leaves no gaps, if possible."""
    even = next((number for number in range(min(fit, count), 0, -1) if count % number == 0), 1)
    return even if even * 2 > fit or even * 2 > count else -(-count // -(-count // fit))


def _distances(table: DistanceTable) -> Drawable:
    names = [shorten(name, 18) for name in table.names]
    texts = [["", *names], *([name, *cells] for name, cells in zip(names, table.cells, strict=True))]
    elements = [
        [label(text, 11, style="" if turn and column else "dim") for column, text in enumerate(line)]
        for turn, line in enumerate(texts)
    ]
    widths = [max(line[column].width for line in elements) for column in range(len(names) + 1)]
    rows = [
        row([element._replace(width=widths[column]) for column, element in enumerate(line)], 12) for line in elements
    ]
    rows = rows if names else []
    return stack([*rows, *([label(table.note, 11, style="dim")] if table.note else [])], 2)


def _legend(layout: MachineLayout) -> Iterator[Drawable]:
    occupancy = layout.occupancy
    uses = occupancy.split(bits.members(layout.cpus))
    states = []
    for use, cpus in uses.items():
        if not use.holder:
            text = label(f"{use.state}: {pluralize(cpus.bit_count(), 'CPU')}")
            states.append(row([block([use.mark or " "], style=use.style), text], 6))
    yield flow(states, _PAGE_WIDTH - 30, gap=24)
    if occupancy.sharing:
        yield label(occupancy.sharing_text, style="dim")
    holders, others = _listed_holders(occupancy)
    yield from map(_holder, holders)
    if others:
        size = format_size(sum(memory_block.size for holder in others for memory_block in holder.memory))
        yield label(f"and {pluralize(len(others), 'pod')} more with {size} of memory", style="dim")


def _listed_holders(occupancy: Occupancy) -> tuple[list[Holder], list[Holder]]:
    """Return the holders to list, and the others; holders with CPUs or devices, which show their keys, are listed."""
    shown_holders, others, only_memory = list[Holder](), list[Holder](), 0
    for holder in occupancy.holders:
        only_memory += not (holder.cpus or holder.devices)
        is_listed = holder.cpus or holder.devices or only_memory <= _MAX_MEMORY_HOLDERS
        (shown_holders if is_listed else others).append(holder)
    return shown_holders, others


def _holder(holder: Holder) -> Drawable:
    texts = [shorten(clean(holder.name), 48)]
    if holder.cpus:
        texts.append(f"CPUs {shorten(format_bits(holder.cpus), 40)}")
    texts += map(format_block, holder.memory)
    for resource, ids in holder.devices:
        texts.append(f"{shorten(clean(resource), 32)}: {shorten(clean(', '.join(ids)), 40)}")
    texts += [shorten(f"claim {clean(claim)}", 48) for claim in holder.claims]
    key = block([holder.key], style=f"holder{holder.index % 8}")
    return row([key, flow((label(text) for text in texts), _PAGE_WIDTH - 100, gap=18)], 8)


def _sentences(layout: MachineLayout) -> Iterator[str]:
    for box in layout.boxes[:_MAX_DESCRIBED]:
        text = f"{box.name} on {format_ids('socket', box.sockets)}"
        memory = f", {box.memory}" if box.node else ""
        devices = "".join(f", {len(group.devices)} of {clean(group.resource)}" for group in box.device_groups)
        yield f"{text}: CPUs {format_bits(box.cpus)}{memory}{devices}."
    if len(layout.boxes) > _MAX_DESCRIBED:
        yield f"{len(layout.boxes) - _MAX_DESCRIBED} more NUMA nodes."
    if layout.nodes_without_cpus:
        yield f"{pluralize(len(layout.nodes_without_cpus), 'NUMA node')} without CPUs."
    holders, others = _listed_holders(layout.occupancy)
    for holder in holders:
        cpus = f"CPUs {format_bits(holder.cpus)}" if holder.cpus else "no exclusive CPUs"
        yield f"{clean(holder.name)} holds {cpus}."
    if others:
        yield f"{pluralize(len(others), 'pod')} more without exclusive CPUs."

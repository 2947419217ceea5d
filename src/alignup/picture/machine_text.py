"""A machine for the terminal: lines of cells with style names, which the caller may color.

Nothing is shown by color alone. Small machines list every CPU by core, nodes with many CPUs show CPU lists, machines
with many nodes show one line per node, and machines with hundreds of nodes show one line per group of equal nodes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.picture.machine_layout import (
    Core,
    DeviceGroup,
    DistanceTable,
    MachineLayout,
    NodeBox,
    SocketFrame,
    layout_machine,
)
from alignup.picture.occupancy import Holder, MemoryBar, Occupancy, UseInfo, UseState, format_block
from alignup.picture.text_format import (
    MAX_LABEL,
    MIN_WIDTH,
    Cell,
    Line,
    clean,
    display_width,
    draw_box,
    draw_strip,
    format_ids,
    format_size,
    labeled,
    list_parts,
    plain,
    pluralize,
    shorten,
    split_words,
    wrap,
)

_MAX_NUMBERED, _MAX_NUMBERED_PER_NODE = 160, 64  #: the most CPUs of a machine and of a node that are shown by number
_MAX_BOXES = 8  #: the most boxes with CPUs that are drawn; more get one line each
_MAX_LINES = 64  #: the most lines for nodes; with more, equal ones share a line
_MAX_LIST_PARTS = 16
_MAX_SENTENCES = 8
_BAR_WIDTH = 20


def draw_text(machine: Machine, ledger: Ledger | None = None, *, width: int = 80) -> list[Line]:
    """Draw *machine*; a *ledger* adds what pods hold. Lines have at most *width* columns."""
    layout = layout_machine(machine, ledger)
    return list(_picture(layout, _Renderer(layout.occupancy, max(width, MIN_WIDTH))))


def _picture(layout: MachineLayout, renderer: "_Renderer") -> Iterator[Line]:
    yield (Cell(layout.title, "title"),)
    yield from wrap([(Cell(fact),) for fact in layout.facts], renderer.width, between=" · ")
    inside = renderer.inside
    if len(layout.boxes) > _MAX_BOXES:
        yield from renderer.boxed("NUMA nodes", inside.rows(layout))
    else:
        sizes = [box.cpus.bit_count() for box in layout.boxes]
        numbers = sum(sizes) <= _MAX_NUMBERED and max(sizes, default=0) <= _MAX_NUMBERED_PER_NODE
        for frame in layout.frames:
            yield from renderer.frame(frame, numbers=numbers)
    if layout.nodes_without_cpus:
        title = "NUMA nodes without CPUs" if layout.boxes else "NUMA nodes"
        yield from renderer.boxed(title, inside.nodes_without_cpus(layout))
    if layout.unplaced_devices or layout.pci or layout.tree:
        yield from renderer.boxed("Devices near several NUMA nodes, or none", inside.unplaced_devices(layout))
    if layout.links:
        yield from renderer.boxed("Links between devices", inside.sentences(layout.links))
    if layout.table and len(layout.table.groups) != 1:
        yield from renderer.boxed("Distances", inside.distances(layout.table))
    if layout.gaps:
        yield from renderer.boxed("Unknown", inside.sentences(layout.gaps))
    if layout.occupancy.known:
        yield from renderer.boxed("Pods and what they hold", inside.legend(layout))


class _Renderer(NamedTuple):
    occupancy: Occupancy
    width: int

    @property
    def inside(self) -> "_Renderer":
        return _Renderer(self.occupancy, self.width - 4)

    def boxed(self, title: str, lines: Iterable[Line]) -> list[Line]:
        return draw_box(title, lines, width=self.width)

    def field(self, label: str | Cell, chunks: Iterable[Line], *, between: str = "  ", column: int = 12) -> list[Line]:
        return labeled(label, chunks, width=self.width, between=between, column=column)

    def frame(self, frame: SocketFrame, *, numbers: bool) -> list[Line]:
        if len(frame.boxes) == 1:
            box = frame.boxes[0]
            return self.boxed(f"{frame.name} · {box.name}", self.inside.node(box, numbers=numbers))
        lines: list[Line] = []
        for box in frame.boxes:
            lines += self.inside.boxed(box.name, self.inside.inside.node(box, numbers=numbers))
        return self.boxed(frame.name, lines)

    def node(self, box: NodeBox, *, numbers: bool) -> list[Line]:
        lines = [line for bar in (self.occupancy.bars(box.node) if box.node else ()) for line in self.memory(bar)]
        if box.node and box.node.memory is None:
            lines += self.field("memory", [(Cell("unknown", "warn"),)])
        lines += self.numbered(box) if numbers else self.folded(box)
        return lines + self.devices(box.device_groups, box)

    def memory(self, bar: MemoryBar) -> list[Line]:
        chunks: list[Line] = [(Cell(bar.name),)]
        if {"free", "held"} & dict(bar.parts).keys():
            shades = {"held": ("█", "held"), "reserved": ("▓", "reserved"), "in huge pages": ("▒", "plain")}
            parts = [(*shades.get(name, ("░", "free")), amount) for name, amount in bar.parts]
            chunks.append(draw_strip(parts, total=bar.total, width=_BAR_WIDTH, fill=Cell("░", "free")))
        chunks += [(Cell(f"{format_size(amount)} {name}"),) for name, amount in bar.parts]
        return self.field("huge pages" if bar.page else "memory", chunks)

    def numbered(self, box: NodeBox) -> list[Line]:
        """Draw every CPU by number, the threads of a core together."""
        chunks: dict[Core, Line] = {}
        for core in (core for core_group in box.core_groups for core in core_group.cores):
            uses = [(cpu, self.occupancy.of_cpu(cpu)) for cpu in core.cpus]
            cells = [(Cell(",", "dim"), Cell(f"{cpu}{use.mark}", use.style)) for cpu, use in uses]
            chunks[core] = tuple(cell for pair in cells for cell in pair)[1:]
        column = max((display_width(plain(chunk)) for chunk in chunks.values()), default=0)
        fit = max(1, (self.width - 10) // (column + 2))  # the label takes 12 columns, and the last has no gap after it
        lines: list[Line] = []
        for core_group in box.core_groups:
            padded_lines = [
                (*chunks[core], Cell(" " * (column - display_width(plain(chunks[core]))))) for core in core_group.cores
            ]
            per_line = -(-len(padded_lines) // -(-len(padded_lines) // fit))
            for start in range(0, len(padded_lines), per_line):
                name = "" if start else core_group.name or "CPUs"
                lines += self.field(name, padded_lines[start : start + per_line])
        return lines

    def folded(self, box: NodeBox) -> list[Line]:
        """Draw CPUs as lists: by cache, with equal caches together; then by use."""
        lines: list[Line] = []
        alike = groupby(box.core_groups, key=lambda group: (group.shape, group.name.rpartition("cache ")[0]))
        for run in (list(groups) for _, groups in alike):
            for part in [run] if len(run) > 4 else [[core_group] for core_group in run]:
                name, shape = part[0].name or "CPUs", part[0].shape
                if len(part) > 1:
                    name, shape = f"{part[0].name.rpartition('cache ')[0]}{len(part)} caches", f"each {shape}"
                cpus = bits.union(core_group.cpus for core_group in part)
                lines += self.field(name, [(Cell(f"{shape}: CPUs"),), *_list_chunks(cpus, "plain")], between=" ")
        for use, cpus in self.occupancy.split(bits.members(box.cpus)).items() if self.occupancy.known else ():
            head = (Cell(f"{cpus.bit_count()}:", use.style),)
            lines += self.field(use.label, [head, *_list_chunks(cpus, use.style)], between=" ")
        return lines

    def devices(self, device_groups: Iterable[DeviceGroup], box: NodeBox | MachineLayout) -> list[Line]:
        """Draw devices of resources, and the PCI devices of *box*."""
        lines: list[Line] = []
        for group in device_groups:
            lines += self.field("" if lines else "devices", self._devices(group))
        for index, text in enumerate(box.tree):
            lines += self.field("" if index else "PCIe", [(Cell(text),)])
        pci = box.pci
        return lines + (self.field("PCI", [(Cell(text),) for text in pci], between=" · ") if pci else [])

    def _devices(self, group: DeviceGroup) -> Iterator[Line]:
        """Draw the devices of one resource by id; of many only the held and unhealthy ones, and a count."""
        yield (Cell(f"{shorten(clean(group.resource), self.width // 2)}:"),)
        shown_devices = self.occupancy.listed(group.devices)
        if len(shown_devices) < len(group.devices):
            named_devices = set(shown_devices)
            rest = [clean(device.id) for device in group.devices if device not in named_devices]
            ends = f"{shorten(rest[0], self.width // 4)} … {shorten(rest[-1], self.width // 4)}" if rest else ""
            yield (Cell(f"{len(rest)}: ", "dim"), Cell(ends))
        for device in shown_devices:
            use = self.occupancy.of_device(device)
            cells = [Cell(shorten(clean(device.id), self.width // 3), use.style)]
            cells += [Cell(f"={use.mark}", use.style)] if use.holder else []
            cells += [] if device.healthy else [Cell(" unhealthy", "warn")]
            yield tuple(cells)

    def unplaced_devices(self, layout: MachineLayout) -> list[Line]:
        lines: list[Line] = []
        for description, device_groups in layout.unplaced_devices:
            lines += [(Cell(shorten(description, self.width), "label"),), *self.devices(device_groups, NodeBox(None))]
        return lines + self.devices((), layout)

    def rows(self, layout: MachineLayout) -> list[Line]:
        boxes = layout.boxes
        groups = layout.fold(boxes) if len(boxes) > _MAX_LINES else [(box,) for box in boxes]
        return [line for group in groups for line in self._row(group)]

    def _row(self, group: Sequence[NodeBox]) -> list[Line]:
        first, prefix = group[0], "each " if len(group) > 1 else ""
        cpus = bits.union(box.cpus for box in group)
        ids = [box.node.id for box in group if box.node]
        shapes = [core_group.shape for core_group in first.core_groups]
        shape = shapes[0] if len(shapes) == 1 else f"{len(shapes)} core groups, {first.cpus.bit_count()} CPUs"
        sockets = {socket for box in group for socket in box.sockets}
        chunks: list[Line] = [
            (Cell(format_ids("socket", sockets), "dim"),),
            *([(Cell(prefix + first.memory),)] if first.node else []),
            (Cell(f"{prefix}{shape}: CPUs"),),
            *_list_chunks(cpus, "plain"),
        ]
        for use, use_cpus in self.occupancy.split(bits.members(cpus)).items() if self.occupancy.known else ():
            chunks.append((Cell(f"{use.label} {use_cpus.bit_count()}", use.style),))
        lines = self.field(format_ids("node", ids) if ids else "no node", chunks, between=" ", column=11)
        return lines + self.devices(first.device_groups, first)

    def nodes_without_cpus(self, layout: MachineLayout) -> list[Line]:
        lines: list[Line] = []
        for group in layout.fold(layout.nodes_without_cpus):
            first, prefix = group[0], f"{len(group)} nodes, each " if len(group) > 1 else ""
            bars = self.occupancy.bars(first.node) if first.node else ()
            simple = len(bars) < 2 and not any(bar.parts for bar in bars)
            chunks = [(Cell(f"{prefix}{first.memory}"),), (Cell(first.nearest, "dim"),)]
            ids = [box.node.id for box in group if box.node]
            lines += self.field(format_ids("node", ids), [chunk for chunk in chunks if chunk[0].text], between=" · ")
            for bar in () if simple else bars:
                lines += self.memory(bar)
            lines += self.devices(first.device_groups, first)
        return lines

    def distances(self, table: DistanceTable) -> list[Line]:
        names = [shorten(name, MAX_LABEL) for name in table.names]
        widths = [
            max([display_width(name), *(len(row[index]) for row in table.cells)]) for index, name in enumerate(names)
        ]
        first = max(map(display_width, names), default=0)
        if first + sum(widths) + 2 * len(widths) > self.width:
            return [(Cell("too wide for this terminal", "dim"),)]
        lines: list[Line] = []
        if names:
            heads = [f"  {name:>{widths[index]}}" for index, name in enumerate(names)]
            lines.append((Cell(" " * first), *(Cell(head, "label") for head in heads)))
        for name, row in zip(names, table.cells, strict=True):
            cells = [Cell(f"  {value:>{widths[index]}}") for index, value in enumerate(row)]
            lines.append((Cell(f"{name:>{first}}", "label"), *cells))
        return lines + ([(Cell(shorten(table.note, self.width), "dim"),)] if table.note else [])

    def sentences(self, texts: Sequence[str]) -> list[Line]:
        lines = [
            line
            for text in texts[:_MAX_SENTENCES]
            for line in self.field("·", split_words((Cell(clean(text)),)), between=" ", column=2)
        ]
        more = len(texts) - _MAX_SENTENCES
        return lines + ([(Cell(f"and {more} more", "dim"),)] if more > 0 else [])

    def legend(self, layout: MachineLayout) -> list[Line]:
        meanings = {
            UseState.SHARED: f"{self.occupancy.sharing_text}; still available for exclusive use",
            UseState.RESERVED: "reserved for system daemons",
            UseState.LOST: "unassigned until the host restarts",
            UseState.UNSEEN: "unknown to the host",
        }
        lines: list[Line] = []
        for use, cpus in self.occupancy.split(bits.members(layout.cpus)).items():
            if not use.holder:
                text = f"{pluralize(cpus.bit_count(), 'CPU')} {meanings.get(use.state, 'free (no mark)')}"
                words = split_words((Cell(text, use.style),))
                lines += self.field(f"{use.mark} {use.state}".strip(), words, between=" ")
        for holder in self.occupancy.holders:
            lines += self._holder(holder)
        return lines

    def _holder(self, holder: Holder) -> list[Line]:
        style = UseInfo(UseState.HELD, holder).style
        chunks: list[Line] = [(Cell(shorten(clean(holder.name), self.width // 2), style),)]
        if holder.cpus:
            chunks += [(Cell("CPUs"),), *_list_chunks(holder.cpus, style)]
        chunks += [(Cell(format_block(block)),) for block in holder.memory]
        for resource, ids in holder.devices:
            contents = clean(ids[0]) if len(ids) == 1 else pluralize(len(ids), "device")
            chunks.append((Cell(f"{shorten(clean(resource), self.width // 3)} {shorten(contents, self.width // 3)}"),))
        chunks += [(Cell(shorten(f"claim {clean(claim)}", self.width // 2)),) for claim in holder.claims]
        return self.field(Cell(holder.key, style), chunks)


def _list_chunks(cpus: CpuSet, style: str) -> list[Line]:
    """Return a list in chunks that can be wrapped; a very scattered one ends with its count."""
    parts = list_parts(cpus)
    shown_parts = parts if len(parts) <= _MAX_LIST_PARTS else parts[: _MAX_LIST_PARTS - 1]
    chunks: list[Line] = [(Cell(f"{part},", style),) for part in shown_parts[:-1]]
    chunks.append((Cell(shown_parts[-1], style),))
    if len(parts) > len(shown_parts):
        chunks.append((Cell(f"… ({cpus.bit_count()} in total)", "dim"),))
    return chunks

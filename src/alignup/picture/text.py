"""A machine for the terminal: lines of cells, each with the name of a style, which the caller may colour or not.

Nothing is said by colour alone. Small machines show every CPU by number, core by core; nodes with many CPUs show
lists of them; machines with many nodes show a line for each, and for hundreds a line for all that are alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine
from alignup.picture.cells import Cell, Chunk, Line, draw_box, labeled, plain, split_words, to_ascii, wrap
from alignup.picture.distances import DistanceTable
from alignup.picture.layout import (
    Core,
    CoreGroup,
    DeviceGroup,
    MachineLayout,
    NodeBox,
    SocketFrame,
    fold_key,
    format_memory,
    group_adjacent,
    layout_machine,
)
from alignup.picture.occupancy import Holder, MemoryBar, Occupancy, UseInfo, UseState, format_block
from alignup.picture.text_format import clean, display_width, format_ids, format_size, list_parts, pluralize, shorten

MIN_WIDTH = 60

#: A machine with more CPUs, or with more in one node, shows lists.
_TOTAL, _CPUS = 160, 64
#: Devices of one resource in one place that are all named.
_DEVICES = 16
#: Boxes with CPUs that are all drawn; with more there is a line for each.
_BOXES = 8
#: Lines for nodes; with more those alike share one.
_LINES = 64
_RUNS = 16
_GAPS = 8
_BAR = 20
_LABEL = 18


def draw(machine: Machine, ledger: Ledger | None = None, *, width: int = 80, ascii_only: bool = False) -> list[Line]:
    """The picture of *machine*, with a *ledger* also of who holds what, in lines of at most *width* columns."""
    scene = layout_machine(machine, ledger)
    lines = list(_picture(scene, _Pen(scene.uses, max(width, MIN_WIDTH))))
    return [tuple(Cell(to_ascii(text), style) for text, style in line) for line in lines] if ascii_only else lines


def _picture(scene: MachineLayout, pen: "_Pen") -> Iterator[Line]:
    yield (Cell(scene.title, "title"),)
    yield from wrap([(Cell(fact),) for fact in scene.facts], pen.width, between=" · ")
    inside = pen.inside
    if len(scene.boxes) > _BOXES:
        yield from pen.boxed("NUMA nodes", inside.rows(scene.boxes))
    else:
        sizes = [box.cpus.bit_count() for box in scene.boxes]
        numbers = sum(sizes) <= _TOTAL and max(sizes, default=0) <= _CPUS
        for frame in scene.frames:
            yield from pen.frame(frame, numbers=numbers)
    if scene.bare:
        yield from pen.boxed("NUMA nodes without CPUs", inside.bare(scene))
    if scene.loose or scene.pci:
        yield from pen.boxed("Devices near several NUMA nodes, or none", inside.loose(scene))
    if scene.table and len(scene.table.groups) != 1:
        yield from pen.boxed("Distances", inside.distances(scene.table))
    if scene.gaps:
        yield from pen.boxed("Not known", inside.gaps(scene.gaps))
    if scene.uses.known:
        yield from pen.boxed("Who holds what", inside.legend(scene))


@dataclass(frozen=True, slots=True)
class _Pen:
    """Draws what it is shown, in so many columns."""

    uses: Occupancy
    width: int

    @property
    def inside(self) -> "_Pen":
        """The pen for what is in a box."""
        return _Pen(self.uses, self.width - 4)

    def boxed(self, title: str, lines: Iterable[Line]) -> list[Line]:
        """A box as wide as there is room."""
        return draw_box(title, lines, width=self.width)

    def field(self, label: str | Cell, chunks: Iterable[Chunk], *, between: str = "  ", column: int = 12) -> list[Line]:
        """Chunks after a label, as wide as there is room."""
        return labeled(label, chunks, width=self.width, between=between, column=column)

    def frame(self, frame: SocketFrame, *, numbers: bool) -> list[Line]:
        """Sockets around their nodes; one node alone shares the box with its sockets."""
        if len(frame.boxes) == 1:
            box = frame.boxes[0]
            return self.boxed(f"{frame.name} · {box.name}", self.inside.node(box, numbers=numbers))
        lines: list[Line] = []
        for box in frame.boxes:
            lines += self.inside.boxed(box.name, self.inside.inside.node(box, numbers=numbers))
        return self.boxed(frame.name, lines)

    def node(self, box: NodeBox, *, numbers: bool) -> list[Line]:
        """Everything in one box; *numbers*: every CPU is shown."""
        lines = [line for bar in (self.uses.bars(box.node) if box.node else ()) for line in self.memory(bar)]
        if box.node and box.node.memory is None:
            lines += self.field("memory", [(Cell("not known", "warn"),)])
        lines += self.numbered(box) if numbers else self.folded(box)
        return lines + self.extras(box)

    def memory(self, bar: MemoryBar) -> list[Line]:
        """One type of memory and how it is divided."""
        chunks: list[Chunk] = [(Cell(bar.name),)]
        if {"free", "held"} & dict(bar.parts).keys():
            chunks.append(_strip(bar))
        chunks += [(Cell(f"{format_size(amount)} {name}"),) for name, amount in bar.parts]
        return self.field("huge pages" if bar.page else "memory", chunks)

    def numbered(self, box: NodeBox) -> list[Line]:
        """Every CPU by its number, the threads of a core together."""
        chunks = {core: self._core(core) for cluster in box.clusters for core in cluster.cores}
        column = max((display_width(plain(chunk)) for chunk in chunks.values()), default=0)
        fit = max(1, (self.width - 10) // (column + 2))  # the label takes 12, and the last has no gap after it
        lines: list[Line] = []
        for cluster in box.clusters:
            padded = [_padded(chunks[core], column) for core in cluster.cores]
            each = -(-len(padded) // -(-len(padded) // fit))
            for start in range(0, len(padded), each):
                name = "" if start else cluster.name or "CPUs"
                lines += self.field(name, padded[start : start + each])
        return lines

    def _core(self, core: Core) -> Chunk:
        cells: list[Cell] = []
        for cpu in core.cpus:
            use = self.uses.of_cpu(cpu)
            cells += [Cell(",", "dim")] if cells else []
            cells.append(Cell(f"{cpu}{use.mark}", _style(use)))
        return tuple(cells)

    def folded(self, box: NodeBox) -> list[Line]:
        """CPUs as lists: by cache, or all that are alike together; then by what they are doing."""
        lines: list[Line] = []
        for run in group_adjacent(
            box.clusters, key=lambda cluster: (cluster.shape, cluster.name.rpartition("cache ")[0])
        ):
            for part in [run] if len(run) > 4 else [(cluster,) for cluster in run]:
                lines += self.field(*_alike(part), between=" ")
        for use, cpus in self.uses.split(bits.members(box.cpus)).items() if self.uses.known else ():
            head = (Cell(f"{cpus.bit_count()}:", _style(use)),)
            lines += self.field(_short(use), [head, *_list(cpus, _style(use))], between=" ")
        return lines

    def extras(self, box: NodeBox) -> list[Line]:
        """The devices of a box."""
        return self.kinds(box.kinds) + self.pci(box.pci)

    def kinds(self, kinds: Iterable[DeviceGroup]) -> list[Line]:
        """Devices, a field for each resource."""
        lines: list[Line] = []
        for kind in kinds:
            lines += self.field("" if lines else "devices", self._devices(kind))
        return lines

    def _devices(self, kind: DeviceGroup) -> Iterator[Chunk]:
        """The devices of one resource by id; of many only those that are held or ill, and the rest counted."""
        yield (Cell(f"{shorten(clean(kind.resource), self.width // 2)}:"),)
        shown = kind.devices
        if len(shown) > _DEVICES:
            shown = tuple(each for each in shown if self.uses.of_device(each).tenant or not each.healthy)[:_DEVICES]
            named = set(shown)
            rest = [clean(device.id) for device in kind.devices if device not in named]
            ends = f"{shorten(rest[0], self.width // 4)} … {shorten(rest[-1], self.width // 4)}" if rest else ""
            yield (Cell(f"{len(rest)}: ", "dim"), Cell(ends))
        for device in shown:
            use = self.uses.of_device(device)
            cells = [Cell(shorten(clean(device.id), self.width // 3), _style(use))]
            cells += [Cell(f"={use.mark}", _style(use))] if use.tenant else []
            cells += [] if device.healthy else [Cell(" unhealthy", "warn")]
            yield tuple(cells)

    def pci(self, texts: Sequence[str]) -> list[Line]:
        """PCI devices."""
        return self.field("PCI", [(Cell(text),) for text in texts], between=" · ") if texts else []

    def loose(self, scene: MachineLayout) -> list[Line]:
        """Devices of no one node, after where they are."""
        lines: list[Line] = []
        for where, kinds in scene.loose:
            lines += [(Cell(shorten(where, self.width), "label"),), *self.kinds(kinds)]
        return lines + self.pci(scene.pci)

    def rows(self, boxes: Sequence[NodeBox]) -> list[Line]:
        """A line for each box; of very many, one for all neighbours that are alike."""
        groups: list[tuple[NodeBox, ...]] = [(box,) for box in boxes]
        if len(groups) > _LINES:
            groups = group_adjacent(boxes, key=lambda box: fold_key(box, self.uses))
        return [line for group in groups for line in self._row(group)]

    def _row(self, group: Sequence[NodeBox]) -> list[Line]:
        first, each = group[0], "each " if len(group) > 1 else ""
        cpus = _union(group)
        ids = [box.node.id for box in group if box.node]
        shapes = [cluster.shape for cluster in first.clusters]
        shape = shapes[0] if len(shapes) == 1 else f"{len(shapes)} clusters, {first.cpus.bit_count()} CPUs"
        sockets = {socket for box in group for socket in box.sockets}
        chunks: list[Chunk] = [
            (Cell(format_ids("socket", sockets), "dim"),),
            *([(Cell(each + format_memory(first)),)] if first.node else []),
            (Cell(f"{each}{shape}: CPUs"),),
            *_list(cpus, "plain"),
        ]
        for use, own in self.uses.split(bits.members(cpus)).items() if self.uses.known else ():
            chunks.append((Cell(f"{_short(use)} {own.bit_count()}", _style(use)),))
        lines = self.field(format_ids("node", ids) if ids else "no node", chunks, between=" ", column=11)
        return lines + self.extras(first)

    def bare(self, scene: MachineLayout) -> list[Line]:
        """Nodes without CPUs, those alike in one line."""
        lines: list[Line] = []
        for group in group_adjacent(scene.bare, key=lambda box: (fold_key(box, self.uses), scene.near_of(box))):
            first, each = group[0], f"{len(group)} nodes, each " if len(group) > 1 else ""
            bars = self.uses.bars(first.node) if first.node else ()
            simple = len(bars) < 2 and not any(bar.parts for bar in bars)
            chunks = [(Cell(f"{each}{format_memory(first)}"),), (Cell(scene.near_of(first), "dim"),)]
            ids = [box.node.id for box in group if box.node]
            lines += self.field(format_ids("node", ids), [one for one in chunks if one[0].text], between=" · ")
            for bar in () if simple else bars:
                lines += self.memory(bar)
            lines += self.extras(first)
        return lines

    def distances(self, table: DistanceTable) -> list[Line]:
        """A table: rows are from, columns are to."""
        names = [shorten(name, _LABEL) for name in table.names]
        widths = [
            max([display_width(name), *(len(row[place]) for row in table.cells)]) for place, name in enumerate(names)
        ]
        first = max(map(display_width, names), default=0)
        if first + sum(widths) + 2 * len(widths) > self.width:
            return [(Cell("too many to show in so few columns", "dim"),)]
        lines: list[Line] = []
        if names:
            heads = [f"  {name:>{widths[place]}}" for place, name in enumerate(names)]
            lines.append((Cell(" " * first), *(Cell(head, "label") for head in heads)))
        for name, row in zip(names, table.cells, strict=True):
            cells = [Cell(f"  {value:>{widths[place]}}") for place, value in enumerate(row)]
            lines.append((Cell(f"{name:>{first}}", "label"), *cells))
        return lines + ([(Cell(shorten(table.note, self.width), "dim"),)] if table.note else [])

    def gaps(self, gaps: Sequence[str]) -> list[Line]:
        """What the machine does not say."""
        lines = [
            line
            for gap in gaps[:_GAPS]
            for line in self.field("·", split_words((Cell(clean(gap)),)), between=" ", column=2)
        ]
        return lines + ([(Cell(f"and {len(gaps) - _GAPS} more", "dim"),)] if len(gaps) > _GAPS else [])

    def legend(self, scene: MachineLayout) -> list[Line]:
        """What the marks mean, and what each pod holds."""
        lines: list[Line] = []
        for use, cpus in self.uses.split(bits.members(_union(scene.boxes))).items():
            if not use.tenant:
                told = f"{pluralize(cpus.bit_count(), 'CPU')} {_meaning(use, self.uses)}"
                lines += self.field(
                    f"{use.mark} {use.state}".strip(), split_words((Cell(told, _style(use)),)), between=" "
                )
        for tenant in self.uses.tenants:
            lines += self._tenant(tenant)
        return lines

    def _tenant(self, tenant: Holder) -> list[Line]:
        style = _style(UseInfo(UseState.HELD, tenant))
        chunks: list[Chunk] = [(Cell(shorten(clean(tenant.name), self.width // 2), style),)]
        if tenant.cpus:
            chunks += [(Cell("CPUs"),), *_list(tenant.cpus, style)]
        for block in tenant.memory:
            chunks.append((Cell(format_block(block)),))
        for resource, ids in tenant.devices:
            held = clean(ids[0]) if len(ids) == 1 else pluralize(len(ids), "device")
            chunks.append((Cell(f"{shorten(clean(resource), self.width // 3)} {shorten(held, self.width // 3)}"),))
        return self.field(Cell(tenant.key, style), chunks)


def _strip(bar: MemoryBar) -> Chunk:
    """How memory is divided, as a strip; each part ends where it would on a finer one."""
    shades = {"held": ("█", "held"), "reserved": ("▓", "reserved"), "in huge pages": ("▒", "plain")}
    cells, sum_, used = [], 0, 0
    for name, amount in bar.parts:
        char, style = shades.get(name, ("░", "free"))
        sum_ += amount
        end = round(sum_ * _BAR / bar.total)
        cells.append(Cell(char * (end - used), style))
        used = end
    return (*cells, Cell("░" * (_BAR - used), "free"))


def _padded(chunk: Chunk, column: int) -> Chunk:
    return (*chunk, Cell(" " * (column - display_width(plain(chunk)))))


def _alike(clusters: Sequence[CoreGroup]) -> tuple[str, list[Chunk]]:
    cpus = 0
    for cluster in clusters:
        cpus |= cluster.cpus
    if len(clusters) == 1:
        return clusters[0].name or "CPUs", [(Cell(f"{clusters[0].shape}: CPUs"),), *_list(cpus, "plain")]
    where, _, _ = clusters[0].name.rpartition("cache ")
    return f"{where}{len(clusters)} caches", [(Cell(f"each {clusters[0].shape}: CPUs"),), *_list(cpus, "plain")]


def _list(cpus: CpuSet, style: str) -> list[Chunk]:
    """A list in pieces that lines may be broken between; of a very scattered one the count stands for the rest."""
    parts = list_parts(cpus)
    shown = parts if len(parts) <= _RUNS else parts[: _RUNS - 1]
    chunks: list[Chunk] = [(Cell(f"{part},", style),) for part in shown[:-1]]
    chunks.append((Cell(shown[-1], style),))
    if len(parts) > len(shown):
        chunks.append((Cell(f"… ({cpus.bit_count()} in all)", "dim"),))
    return chunks


def _meaning(use: UseInfo, uses: Occupancy) -> str:
    names = [shorten(clean(name), 40) for name in uses.sharing[:3]]
    more = f" and {len(uses.sharing) - 3} more" if len(uses.sharing) > 3 else ""
    return {
        UseState.SHARED: f"shared by {', '.join(names)}{more}; each may still be given to one pod alone",
        UseState.RESERVED: "kept for the system",
        UseState.LOST: "nobody's until the host starts again",
        UseState.UNSEEN: "the host does not know of",
    }.get(use.state, "free (no mark)")


def _union(boxes: Iterable[NodeBox]) -> CpuSet:
    cpus = 0
    for box in boxes:
        cpus |= box.cpus
    return cpus


def _short(use: UseInfo) -> str:
    return use.mark if use.tenant else str(use.state)


def _style(use: UseInfo) -> str:
    return f"tenant{use.tenant.place % 8}" if use.tenant else str(use.state)

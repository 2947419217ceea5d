"""Links between devices, counted as sources list them: one end after the other, often once for each direction."""

from collections import Counter
from collections.abc import Iterator

from alignup.align.locality import DeviceLink, LinkKind

SWITCH_END, CPU_END = "switch", "cpu"  #: in place of the address of a device


class LinkCounts:
    """Counts links of one kind. Links to switches make one fabric, since all switches of a machine are connected."""

    def __init__(self, kind: LinkKind) -> None:
        self._kind = kind
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, device: str, end: str, count: int = 1) -> None:
        """Add links that *device* lists; *end* may list them, too, and is asked which of both has more."""
        if device in {SWITCH_END, CPU_END}:
            device, end = end, device
        if device != end and device not in {SWITCH_END, CPU_END} and count > 0:
            self._counts[device, end] += count

    def links(self) -> Iterator[DeviceLink]:
        fabric: dict[str, int] = {}
        for (device, end), count in sorted(self._counts.items()):
            if end == SWITCH_END:
                fabric[device] = count
            elif end == CPU_END:
                yield DeviceLink(self._kind, (device,), count)
            elif device < end or (end, device) not in self._counts:
                ends = (min(device, end), max(device, end))
                yield DeviceLink(self._kind, ends, max(count, self._counts[end, device]))
        # A GPU with fewer links than others reaches them with its own number.
        for count in sorted(set(fabric.values())):
            devices = tuple(device for device, number in fabric.items() if number >= count)
            if len(devices) > 1:
                yield DeviceLink(LinkKind.NVSWITCH, devices, count)

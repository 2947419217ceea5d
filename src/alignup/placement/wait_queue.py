"""The wait queue: items that wait for resources, in the order in which they are tried.

Items of one kind are decided alike: where the first of a kind does not fit, the others do not either. So only the first
of each kind is tried, and a kind that fits nowhere can be blocked until something changes that it could use.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from copy import copy
from typing import Any, Generic, NamedTuple, Self, TypeVar

Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")


class Entry(NamedTuple):
    order: tuple[Any, ...]
    arrival: int
    uid: str
    kind: Any
    item: Any


class WaitQueue(Generic[Kind, Item]):
    """Waiting items by uid; the lowest order is first, and of equal orders the one that arrived first."""

    def __init__(self) -> None:
        self.blocked: set[Kind] = set()  #: kinds that are not tried; also kinds of which nothing waits
        self._entries: dict[str, Entry] = {}
        self._kinds: dict[Kind, list[Entry]] = {}  #: sorted; none of them is empty
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the items in order, also if items are added or removed meanwhile."""
        return iter([entry.item for entry in sorted(self._entries.values())])

    def copy(self) -> Self:
        """Return a queue that can change independently."""
        queue = copy(self)
        queue.blocked = set(self.blocked)
        kinds = {kind: [*entries] for kind, entries in self._kinds.items()}
        queue._entries = dict(self._entries)  # noqa: SLF001 - of the same class
        queue._kinds = kinds  # noqa: SLF001
        return queue

    def put(self, uid: str, item: Item, *, kind: Kind, order: tuple[Any, ...] = ()) -> None:
        """Add an item, or replace the one with this uid, whose time of arrival stays."""
        replaced_entry = self._pop(uid)
        if replaced_entry is None:
            self._arrivals += 1
        arrival = self._arrivals if replaced_entry is None else replaced_entry.arrival
        entry = self._entries[uid] = Entry(order, arrival, uid, kind, item)
        insort(self._kinds.setdefault(kind, []), entry)

    def remove(self, uid: str) -> Item | None:
        """Remove an item and return it; ``None``: unknown uid."""
        entry = self._pop(uid)
        return None if entry is None else entry.item

    def get(self, uid: str) -> Item | None:
        entry = self._entries.get(uid)
        return None if entry is None else entry.item

    def position(self, uid: str) -> int | None:
        """Return the position from 1; ``None``: unknown uid."""
        entry = self._entries.get(uid)
        return None if entry is None else 1 + sum(bisect_left(entries, entry) for entries in self._kinds.values())

    def of_kind(self, kind: Kind) -> list[Item]:
        """Return the items of a kind, in order."""
        return [entry.item for entry in self._kinds.get(kind, ())]

    def heads(self, *, blocked: bool = False) -> Iterator[tuple[Kind, Item]]:
        """Yield each kind that is not blocked (or each that is) with its first item, in the order of these items.

        If the caller removes the item, the next of its kind follows in its turn. Nothing else may change meanwhile.
        """
        kinds = [kind for kind in self._kinds if (kind in self.blocked) is blocked]
        heads = [self._kinds[kind][0] for kind in kinds]
        heapq.heapify(heads)
        while heads:
            head = heapq.heappop(heads)
            yield head.kind, head.item
            entries = self._kinds.get(head.kind)
            if entries and entries[0] is not head:
                heapq.heappush(heads, entries[0])

    def _pop(self, uid: str) -> Entry | None:
        entry = self._entries.pop(uid, None)
        if entry is not None:
            entries = self._kinds[entry.kind]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._kinds[entry.kind]
        return entry

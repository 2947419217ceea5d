"""Lists in pages, as in the Kubernetes API: ``limit``, and a ``continue`` token for the next page.

All pages of a list come from one snapshot, so they are consistent. Snapshots are kept for a
few minutes; then a token expires, and the client lists again from the start.
"""

import asyncio
import base64
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

MAX_PAGE_BYTES = 1 << 20  #: a page ends before its limit when it is larger
_SNAPSHOTS = 16
_SNAPSHOT_SECONDS = 300.0
_HOLD_SECONDS = 0.004  #: to build items before other tasks run
_SLICE = 32  #: items that a snapshot creates at once
_TOKEN = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})", re.ASCII)


class InvalidTokenError(Exception):
    """A text that no pager returned as a token."""


class TokenExpiredError(Exception):
    """The snapshot of a token is no longer kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    items: Sequence[bytes]  #: in JSON
    token: str | None  #: of the next page; ``None``: this is the last
    remaining: int  #: items after this page


class SnapshotPager(Generic[Item]):
    """Divides lists into pages and keeps their snapshots. *now* returns a monotonic time."""

    def __init__(self, encode: Callable[[Item], bytes], *, now: Callable[[], float] = time.monotonic) -> None:
        self._encode = encode
        self._now = now
        self._snapshots: dict[str, tuple[float, Sequence[Item]]] = {}  #: ID → time of expiry and the list, oldest first

    async def page(self, take_snapshot: Callable[[], Sequence[Item]], *, limit: int, token: str | None) -> Page:
        """Return the page of *token*, or the first page of a new snapshot, with at most *limit* items.

        Raise ``InvalidTokenError`` or ``TokenExpiredError`` if the page does not exist.
        """
        key, start, items = self._find(token) if token is not None else (None, 0, take_snapshot())
        encoded_items = await encode_items(items, self._encode, start=start, limit=limit)
        end = start + len(encoded_items)
        if end >= len(items):
            return Page(items=encoded_items, token=None, remaining=0)
        key = key or self._keep(items)
        text = f"{key}.{end}".encode("ascii")
        return Page(
            items=encoded_items, token=base64.urlsafe_b64encode(text).decode("ascii"), remaining=len(items) - end
        )

    def _keep(self, items: Sequence[Item]) -> str:
        self._drop_expired()
        while len(self._snapshots) >= _SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]
        key = secrets.token_hex(8)
        self._snapshots[key] = self._now() + _SNAPSHOT_SECONDS, items
        return key

    def _find(self, token: str) -> tuple[str, int, Sequence[Item]]:
        try:
            match = _TOKEN.fullmatch(base64.b64decode(token, altchars=b"-_", validate=True).decode("ascii"))
        except ValueError:
            match = None
        if match is None:
            raise InvalidTokenError
        self._drop_expired()
        if match[1] not in self._snapshots:
            raise TokenExpiredError
        items = self._snapshots[match[1]][1]
        return match[1], min(int(match[2]), len(items)), items

    def _drop_expired(self) -> None:
        self._snapshots = {key: entry for key, entry in self._snapshots.items() if entry[0] > self._now()}


async def encode_items(
    items: Sequence[Item], encode: Callable[[Item], bytes], *, start: int = 0, limit: int
) -> list[bytes]:
    """Encode up to *limit* items from *start* on, fewer if they are large, and let other tasks run in between."""

    def page() -> Iterator[bytes]:
        size, end = 0, min(len(items), start + limit)
        for position in range(start, end, _SLICE):
            for item in items[position : min(position + _SLICE, end)]:
                encoded_item = encode(item)
                yield encoded_item
                size += len(encoded_item)
                if size >= MAX_PAGE_BYTES:
                    return

    return await gather_items(page())


async def gather_items(items: Iterable[Item]) -> list[Item]:
    """Return *items* as a list, and let other tasks run while it grows."""
    all_items: list[Item] = []
    since = time.perf_counter()
    for item in items:
        all_items.append(item)
        if time.perf_counter() - since >= _HOLD_SECONDS:
            await asyncio.sleep(0)
            since = time.perf_counter()
    return all_items

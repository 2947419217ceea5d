"""The picture of the machine, drawn in a thread, and once for each state of the ledger however many clients ask."""

import asyncio
from typing import TYPE_CHECKING

from alignup.align.host import Host

if TYPE_CHECKING:
    from alignup.align.ledger import Ledger


class LatestPicture:
    """Pictures of one machine; its devices are those in the ledger."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._ledger: Ledger | None = None  #: of the picture; ledgers are values, so it stays as it was drawn
        self._svg = b""

    async def svg(self, host: Host) -> bytes:
        async with self._lock:
            if host.ledger is not self._ledger:
                self._svg = await asyncio.to_thread(_draw, host)
                self._ledger = host.ledger
            return self._svg


def _draw(host: Host) -> bytes:
    from alignup.picture.machine_svg import draw_svg  # noqa: PLC0415 - few agents are asked for a picture

    return draw_svg(host.machine, host.ledger).encode("utf-8", "replace")

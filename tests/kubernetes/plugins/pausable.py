"""A device plugin whose Allocate calls can be held back."""

import asyncio
from typing import Any

from alignup.testing import Plugin
from alignup.wire import device_plugin_pb2 as wire


class PausablePlugin(Plugin):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._running = asyncio.Event()
        self.resume()

    def pause(self) -> None:
        """Hold back Allocate calls until ``resume``."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        await self._running.wait()
        return await super().allocate(request)

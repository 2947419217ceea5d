"""Runs the programs of a cluster until they are told to stop."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, and cancel it on SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(work)
    for number in _SIGNALS:
        loop.add_signal_handler(number, running.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await running
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

"""The end of asyncio tasks."""

import asyncio
from collections.abc import Collection
from typing import Any


async def cancel_tasks(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel *tasks*, and wait until all have ended; their results and errors are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

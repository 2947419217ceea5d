"""Background tasks of a test."""

import asyncio
from contextlib import asynccontextmanager


@asynccontextmanager
async def running():
    """Start coroutines that run until the end; one that has failed by then fails the test."""
    tasks = []

    def start(coroutine):
        tasks.append(asyncio.create_task(coroutine))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome

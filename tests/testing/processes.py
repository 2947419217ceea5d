"""Plugins as processes of their own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def process(directory: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A plugin of ``example.com/gpu``; killed at the end, if it is still there."""
    command = ["-m", "alignup.testing.plugin", "--resource", "example.com/gpu", "--dir", str(directory), *options]
    made = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=-1, stderr=-1)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()

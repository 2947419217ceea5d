"""Plugins and runtimes as processes of their own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def process(directory: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A plugin of ``example.com/gpu``; killed at the end, if it is still there."""
    told = ["--resource", "example.com/gpu", "--dir", str(directory), *options]
    async with _process("alignup.testing.plugin", *told) as made:
        yield made


@asynccontextmanager
async def runtime_process(place: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A runtime at ``cri.sock`` in *place*, which has said that it listens; killed at the end, if it is still there."""
    told = ["--socket", str(place / "cri.sock"), "--dir", str(place / "work"), *options]
    async with _process("alignup.testing.runtime", *told) as made:
        assert made.stdout
        assert await made.stdout.readline() == f"listening at {place / 'cri.sock'}\n".encode()
        yield made


@asynccontextmanager
async def _process(module: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    made = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *options, stdout=-1, stderr=-1)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()

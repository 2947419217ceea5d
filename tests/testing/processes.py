"""Plugins and runtimes as separate processes."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def plugin_process(directory: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a plugin of ``example.com/gpu``; kill it at the end, if it still runs."""
    arguments = ["--resource", "example.com/gpu", "--dir", str(directory), *options]
    async with _process("alignup.testing.plugin", *arguments) as made:
        yield made


@asynccontextmanager
async def runtime_process(root: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a runtime that listens at ``cri.sock`` in *root*; kill it at the end, if it still runs."""
    arguments = ["--socket", str(root / "cri.sock"), "--dir", str(root / "work"), *options]
    async with _process("alignup.testing.runtime", *arguments) as made:
        assert made.stdout
        assert await made.stdout.readline() == f"listening at {root / 'cri.sock'}\n".encode()
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

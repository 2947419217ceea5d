"""Plugins and drivers as separate processes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from alignup.testing import plugin as plugin_program
from tests.forked_processes import forked


@contextmanager
def plugin_process(directory: Path, *options: str) -> Iterator[BaseProcess]:
    """Yield a plugin of ``example.com/gpu``; kill it at the end."""
    plugin = start_plugin(directory, *options)
    try:
        yield plugin
    finally:
        plugin.kill()
        plugin.join()


def start_plugin(directory: Path, *options: str) -> BaseProcess:
    """Start a plugin of ``example.com/gpu`` quickly, and drop its output."""
    return forked(_serve, ["--resource", "example.com/gpu", "--dir", str(directory), *options])


def _serve(arguments: list[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.exit(plugin_program.main(arguments))


async def exit_code(process: BaseProcess) -> int | None:
    """Return the exit code of a process once it has ended."""
    await asyncio.to_thread(process.join, 60)
    return process.exitcode


@asynccontextmanager
async def plugin_program_process(directory: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a plugin of ``example.com/gpu`` as users start it; kill it at the end, if it still runs."""
    arguments = ["--resource", "example.com/gpu", "--dir", str(directory), *options]
    async with program_process("alignup.testing.plugin", *arguments) as plugin:
        yield plugin


@asynccontextmanager
async def program_process(module: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *options, stdout=-1, stderr=-1)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()

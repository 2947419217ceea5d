"""Pods for a runtime for tests, and waiting for what becomes of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alignup.align.errors import CriError
from alignup.enforce.cri.client import RuntimeClient as Client
from alignup.enforce.cri.types import ContainerConfig, ContainerState, CriContainer, NamespaceOptions, SandboxConfig
from alignup.testing.runtime import Runtime

IMAGE = "busybox"
PATIENCE = 10.0  #: seconds for something that happens at once on a machine that is not busy


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def pod(name: str = "web", *, attempt: int = 0, logs: Path | None = None, host_network: bool = True) -> SandboxConfig:
    return SandboxConfig(
        uid=f"uid-of-{name}",
        name=name,
        namespace="default",
        attempt=attempt,
        log_directory=str(logs or ""),
        labels={"app": name},
        namespaces=NamespaceOptions(host_network=host_network),
    )


def shell(script: str, **more) -> ContainerConfig:
    """A container that runs a line of shell."""
    return ContainerConfig(**({"name": "main", "image": IMAGE, "command": ("sh", "-c", script)} | more))


async def started(client: Client, plan: ContainerConfig, *, sandbox: SandboxConfig | None = None) -> str:
    """A container that runs in a new sandbox; its id."""
    sandbox = sandbox or pod()
    made = await client.create(await client.run_sandbox(sandbox), plan, sandbox=sandbox)
    await client.start(made)
    return made


async def exited(client: Client, id_: str) -> CriContainer:
    """A container when it has ended."""
    async with asyncio.timeout(PATIENCE):
        while (seen := await client.container(id_)).state != ContainerState.EXITED:  # noqa: ASYNC110 - it has to be asked
            await asyncio.sleep(0.01)
    return seen


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - nobody tells when it is
            await asyncio.sleep(0.01)


async def reached(client: Client) -> None:
    """Return when the runtime is back; a client needs a moment to notice."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await client.version()
            except CriError:
                await asyncio.sleep(0.01)
            else:
                return


@asynccontextmanager
async def runtime_and_client(place: Path, **more) -> AsyncIterator[tuple[Runtime, Client]]:
    """A runtime with one image, and somebody who uses it."""
    told: dict[str, Any] = {"images": [IMAGE], "directory": place / "work"} | more
    async with Runtime(place / "cri.sock", **told) as runtime, Client(runtime.socket) as client:
        yield runtime, client

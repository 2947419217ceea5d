"""Pods for the test runtime, and helpers that wait for its containers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alignup.align.errors import CriError
from alignup.run.cri.client import RuntimeClient as Client
from alignup.run.cri.types import ContainerConfig, ContainerState, CriContainer, NamespaceOptions, SandboxConfig
from alignup.testing.runtime import Runtime

IMAGE = "busybox"
TIMEOUT = 60.0  #: seconds; generous, for busy machines


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
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
    """Return a container that runs a shell script."""
    return ContainerConfig(**({"name": "main", "image": IMAGE, "command": ("sh", "-c", script)} | more))


async def start_container(client: Client, config: ContainerConfig, *, sandbox: SandboxConfig | None = None) -> str:
    """Start a container in a new sandbox, and return its id."""
    sandbox = sandbox or pod()
    made = await client.create(await client.run_sandbox(sandbox), config, sandbox=sandbox)
    await client.start(made)
    return made


async def wait_exited(client: Client, id_: str) -> CriContainer:
    """Return a container once it has exited."""
    async with asyncio.timeout(TIMEOUT):
        while (seen := await client.container(id_)).state != ContainerState.EXITED:  # noqa: ASYNC110 - CRI has no event for it
            await asyncio.sleep(0.005)
    return seen


async def wait_reachable(client: Client) -> None:
    """Return once the runtime is reachable again; a client needs a moment to notice."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await client.version()
            except CriError:
                await asyncio.sleep(0.005)
            else:
                return


@asynccontextmanager
async def runtime_and_client(root: Path, **more) -> AsyncIterator[tuple[Runtime, Client]]:
    """Yield a runtime with one image, and a client of it."""
    options: dict[str, Any] = {"images": [IMAGE], "directory": root / "work"} | more
    async with Runtime(root / "cri.sock", **options) as runtime, Client(runtime.socket) as client:
        yield runtime, client

"""The testing runtime behaves like containerd 1.6: the same calls have the same results."""
# ruff: noqa: S101

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from alignup.align.errors import CriError
from alignup.run.cri.client import RuntimeClient as Client
from alignup.run.cri.types import ContainerConfig, ContainerState, LinuxResources, NamespaceOptions, SandboxConfig
from alignup.testing.runtime import Runtime
from e2e import containerd
from e2e.containerd import BUSYBOX

MODEL = "1.6."  #: version of containerd; later ones have other messages

WHY = containerd.missing()
if WHY is None and not containerd.version().startswith(MODEL):
    WHY = f"needs containerd {MODEL}x, found {containerd.version()}; Debian 12 has it"
ID = re.compile(r"\b[0-9a-f]{64}\b")

pytestmark = [pytest.mark.skipif(WHY is not None, reason=str(WHY)), pytest.mark.anyio]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Transcript:
    """The results of each step of a scenario, without ids."""

    client: Client
    logs: Path
    results: list[tuple[str, str]] = field(default_factory=list)

    async def step(self, name: str, request: Awaitable[object]) -> str:
        """Record the result of a request; return it if it is a string."""
        try:
            answer = await request
        except CriError as error:
            text = ID.sub("ID", f"{error.code} {error.details}")
            self.results.append((name, text))
            return ""
        self.results.append((name, "done"))
        return answer if isinstance(answer, str) else ""

    async def look(self, name: str, id_: str, *, exited: bool = False) -> None:
        """Record the status of a container, optionally after it has exited."""
        async with asyncio.timeout(120):
            while (seen := await self.client.container(id_)).state != ContainerState.EXITED and exited:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        times = (bool(seen.started), bool(seen.finished), bool(seen.pid))
        message = ID.sub("ID", seen.message)
        self.results.append((name, f"{seen.state} {seen.exit_code} {seen.reason} {times} {message}"))


def container(name: str, *command: str, **more: object) -> ContainerConfig:
    return replace(ContainerConfig(name=name, image=BUSYBOX, command=command), **more)  # type: ignore[arg-type]


async def lifecycle(transcript: Transcript, pod: SandboxConfig) -> None:
    # As the init process of its namespace, it gets only signals with a handler.
    client, plan = transcript.client, container("main", "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done")
    sandbox = await transcript.step("a sandbox", client.run_sandbox(pod))
    await transcript.step("the same again", client.run_sandbox(pod))
    made = await transcript.step("a container", client.create(sandbox, plan, sandbox=pod))
    await transcript.step("the same again", client.create(sandbox, plan, sandbox=pod))
    await transcript.step("in a missing sandbox", client.create("missing", container("x", "true"), sandbox=pod))
    await _try_everything(transcript, made, "created")
    await transcript.step("start", client.start(made))
    await _try_everything(transcript, made, "running")
    await transcript.step("a slow command", client.execute(made, ("sleep", "100"), seconds=1))
    await transcript.step("no command", client.execute(made, ("nope",), seconds=120))
    await transcript.step("stop", client.stop(made, grace=120))
    await _try_everything(transcript, made, "ended")
    await transcript.step("remove", client.remove(made))
    await transcript.step("remove again", client.remove(made))


async def _try_everything(transcript: Transcript, made: str, state: str) -> None:
    client = transcript.client
    await transcript.look(f"{state}: as it is", made)
    await transcript.step(f"{state}: command", client.execute(made, ("true",), seconds=120))
    await transcript.step(f"{state}: update", client.update(made, LinuxResources(cpu_shares=100)))
    await transcript.step(f"{state}: new log", client.reopen_log(made))
    if state != "created":
        await transcript.step(f"{state}: start", client.start(made))
    if state != "running":
        await transcript.step(f"{state}: stop", client.stop(made, grace=1))


async def exits(transcript: Transcript, pod: SandboxConfig) -> None:
    client = transcript.client
    sandbox = await client.run_sandbox(pod)
    for plan in (
        container("well", "true"),
        container("badly", "sh", "-c", "exit 3"),
        container("not-found", "nope"),
        container("no-file", "/no/such/program"),
        container("no-program", "/etc"),
        container("deep-log", "true", log_path="not/made/yet"),
    ):
        made = await client.create(sandbox, plan, sandbox=pod)
        await transcript.step(f"{plan.name}: start", client.start(made))
        await transcript.look(f"{plan.name}: as it is", made, exited=True)
    writes = container("log", "sh", "-c", "echo a; sleep 0.3; head -c 20000 /dev/zero; printf b", log_path="log")
    made = await client.create(sandbox, writes, sandbox=pod)
    await client.start(made)
    await transcript.look("log", made, exited=True)
    for line in (transcript.logs / "log").read_bytes().splitlines():
        _, stream, tag, text = line.split(b" ", 3)
        transcript.results.append(("log", f"{stream.decode()} {tag.decode()} {len(text)}"))


async def stopped_sandboxes(transcript: Transcript, pod: SandboxConfig) -> None:
    client = transcript.client
    sandbox = await client.run_sandbox(pod)
    runs = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    waits = await client.create(sandbox, container("waits", "true"), sandbox=pod)
    await client.start(runs)
    for name in ("stop", "stop again"):
        await transcript.step(name, client.stop_sandbox(sandbox))
    await transcript.look("what ran", runs, exited=True)
    await transcript.look("what waited", waits)
    await transcript.step("start it", client.start(waits))
    await transcript.look("what was started", waits)
    await transcript.step("another container", client.create(sandbox, container("late", "true"), sandbox=pod))
    for name in ("remove", "remove again"):
        await transcript.step(name, client.remove_sandbox(sandbox))
    transcript.results.append(("left", f"{await client.containers()} {await client.sandboxes()}"))

    sandbox = await transcript.step("once more", client.run_sandbox(pod))
    runs = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    await client.start(runs)
    await transcript.step("remove what runs", client.remove(runs))
    again = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    await client.start(again)
    await transcript.step("remove all", client.remove_sandbox(sandbox))
    transcript.results.append(("left", f"{await client.containers()} {await client.sandboxes()}"))


async def no_network(transcript: Transcript, pod: SandboxConfig) -> None:
    client, own = transcript.client, replace(pod, namespaces=NamespaceOptions())
    await transcript.step("a pod network", client.run_sandbox(own))
    await transcript.step("the same again", client.run_sandbox(own))
    for seen in await client.sandboxes():
        transcript.results.append(("left", f"{seen.name} {seen.ready}"))
        await transcript.step("show", client.sandbox(seen.id))
        await transcript.step("a container", client.create(seen.id, container("main", "true"), sandbox=own))
        await transcript.step("stop", client.stop_sandbox(seen.id))
        await transcript.step("remove", client.remove_sandbox(seen.id))
    await transcript.step("another attempt", client.run_sandbox(replace(own, attempt=1)))
    transcript.results.append(("left", f"{len(await client.sandboxes())}"))


async def missing_objects(transcript: Transcript, pod: SandboxConfig) -> None:
    client = transcript.client
    await transcript.step("container", client.container("missing"))
    await transcript.step("start", client.start("missing"))
    await transcript.step("new log", client.reopen_log("missing"))
    await transcript.step("remove", client.remove("missing"))
    await transcript.step("sandbox", client.sandbox("missing"))
    await transcript.step("remove sandbox", client.remove_sandbox("missing"))
    transcript.results.append(("driver", str(await client.cgroup_driver())))
    transcript.results.append(("image", str(await client.image(f"{BUSYBOX}{pod.attempt}"))))
    conditions = await client.conditions()
    transcript.results.append(("conditions", str([(one.type, one.ready, one.reason) for one in conditions])))


Scenario = Callable[[Transcript, SandboxConfig], Awaitable[None]]


async def run_scenario(scenario: Scenario, socket: Path, logs: Path) -> list[tuple[str, str]]:
    logs.mkdir()  # noqa: ASYNC240
    pod = SandboxConfig(
        uid="7",
        name="pod",
        namespace="default",
        log_directory=str(logs),
        namespaces=NamespaceOptions(host_network=True),
    )
    async with Client(socket) as client:
        transcript = Transcript(client, logs)
        await scenario(transcript, pod)
        for sandbox in await client.sandboxes():
            await transcript.step("clear", client.remove_sandbox(sandbox.id))
    return transcript.results


@pytest.mark.parametrize("scenario", [lifecycle, exits, stopped_sandboxes, no_network, missing_objects])
async def test_both_runtimes_have_the_same_results(scenario: Scenario) -> None:
    with tempfile.TemporaryDirectory(prefix="cri") as name:
        place = Path(name)
        async with Runtime(place / "cri.sock", directory=place / "work", images=[BUSYBOX]) as runtime:
            runtime.network = False
            ours = await run_scenario(scenario, runtime.socket, place / "ours")
        with containerd.containerd(place / "containerd") as daemon:
            theirs = await run_scenario(scenario, daemon.socket, place / "theirs")

    assert ours == theirs

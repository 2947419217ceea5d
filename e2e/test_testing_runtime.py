"""The runtime for tests does as containerd 1.6 does: the same calls on both, and the same said by both."""
# ruff: noqa: S101 - a test, as those in tests/

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from alignup.align.errors import CriError
from alignup.enforce.cri.client import RuntimeClient as Client
from alignup.enforce.cri.types import ContainerConfig, ContainerState, LinuxResources, NamespaceOptions, SandboxConfig
from alignup.testing.runtime import Runtime
from e2e import containerd
from e2e.containerd import BUSYBOX

MODEL = "1.6."  #: of containerd; later ones say some of it in other words

WHY = containerd.missing()
if WHY is None and not containerd.version().startswith(MODEL):
    WHY = f"containerd {MODEL}x is the model, and here is {containerd.version()}"
ID = re.compile(r"\b[0-9a-f]{64}\b")

pytestmark = [pytest.mark.skipif(WHY is not None, reason=str(WHY)), pytest.mark.anyio]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Talk:
    """What a runtime said to each step of a story, without what differs from one time to the next."""

    client: Client
    logs: Path
    said: list[tuple[str, str]] = field(default_factory=list)

    async def step(self, name: str, asked: Awaitable[object]) -> str:
        """Ask for something; the answer where it is a text."""
        try:
            answer = await asked
        except CriError as error:
            text = ID.sub("ID", f"{error.code} {error.details}")
            self.said.append((name, text))
            return ""
        self.said.append((name, "done"))
        return answer if isinstance(answer, str) else ""

    async def look(self, name: str, id_: str, *, ended: bool = False) -> None:
        """Write down how a container is, when it has *ended* if need be."""
        async with asyncio.timeout(20):
            while (seen := await self.client.container(id_)).state != ContainerState.EXITED and ended:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        times = (bool(seen.started), bool(seen.finished), bool(seen.pid))
        message = ID.sub("ID", seen.message)
        self.said.append((name, f"{seen.state} {seen.exit_code} {seen.reason} {times} {message}"))


def container(name: str, *command: str, **more: object) -> ContainerConfig:
    return replace(ContainerConfig(name=name, image=BUSYBOX, command=command), **more)  # type: ignore[arg-type]


async def a_life(talk: Talk, pod: SandboxConfig) -> None:
    # Alone in its namespace a process hears only the signals it asked for.
    client, plan = talk.client, container("main", "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done")
    sandbox = await talk.step("a sandbox", client.run_sandbox(pod))
    await talk.step("the same again", client.run_sandbox(pod))
    made = await talk.step("a container", client.create(sandbox, plan, sandbox=pod))
    await talk.step("the same again", client.create(sandbox, plan, sandbox=pod))
    await talk.step("in no sandbox", client.create("nobody", container("x", "true"), sandbox=pod))
    await _whatever_is_possible(talk, made, "created")
    await talk.step("start", client.start(made))
    await _whatever_is_possible(talk, made, "running")
    await talk.step("a slow command", client.execute(made, ("sleep", "100"), seconds=1))
    await talk.step("no command", client.execute(made, ("nope",), seconds=10))
    await talk.step("stop", client.stop(made, grace=2))
    await _whatever_is_possible(talk, made, "ended")
    await talk.step("remove", client.remove(made))
    await talk.step("remove again", client.remove(made))


async def _whatever_is_possible(talk: Talk, made: str, state: str) -> None:
    client = talk.client
    await talk.look(f"{state}: as it is", made)
    await talk.step(f"{state}: command", client.execute(made, ("true",), seconds=10))
    await talk.step(f"{state}: update", client.update(made, LinuxResources(cpu_shares=100)))
    await talk.step(f"{state}: new log", client.reopen_log(made))
    if state != "created":
        await talk.step(f"{state}: start", client.start(made))
    if state != "running":
        await talk.step(f"{state}: stop", client.stop(made, grace=1))


async def endings(talk: Talk, pod: SandboxConfig) -> None:
    client = talk.client
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
        await talk.step(f"{plan.name}: start", client.start(made))
        await talk.look(f"{plan.name}: as it is", made, ended=True)
    writes = container("log", "sh", "-c", "echo a; sleep 0.3; head -c 20000 /dev/zero; printf b", log_path="log")
    made = await client.create(sandbox, writes, sandbox=pod)
    await client.start(made)
    await talk.look("log", made, ended=True)
    for line in (talk.logs / "log").read_bytes().splitlines():
        _, stream, tag, text = line.split(b" ", 3)
        talk.said.append(("log", f"{stream.decode()} {tag.decode()} {len(text)}"))


async def sandboxes_end(talk: Talk, pod: SandboxConfig) -> None:
    client = talk.client
    sandbox = await client.run_sandbox(pod)
    runs = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    waits = await client.create(sandbox, container("waits", "true"), sandbox=pod)
    await client.start(runs)
    for name in ("stop", "stop again"):
        await talk.step(name, client.stop_sandbox(sandbox))
    await talk.look("what ran", runs, ended=True)
    await talk.look("what waited", waits)
    await talk.step("start it", client.start(waits))
    await talk.look("what was started", waits)
    await talk.step("another container", client.create(sandbox, container("late", "true"), sandbox=pod))
    for name in ("remove", "remove again"):
        await talk.step(name, client.remove_sandbox(sandbox))
    talk.said.append(("left", f"{await client.containers()} {await client.sandboxes()}"))

    sandbox = await talk.step("once more", client.run_sandbox(pod))
    runs = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    await client.start(runs)
    await talk.step("remove what runs", client.remove(runs))
    again = await client.create(sandbox, container("runs", "sleep", "1000"), sandbox=pod)
    await client.start(again)
    await talk.step("remove all", client.remove_sandbox(sandbox))
    talk.said.append(("left", f"{await client.containers()} {await client.sandboxes()}"))


async def no_network(talk: Talk, pod: SandboxConfig) -> None:
    client, own = talk.client, replace(pod, namespaces=NamespaceOptions())
    await talk.step("a network of its own", client.run_sandbox(own))
    await talk.step("the same again", client.run_sandbox(own))
    for seen in await client.sandboxes():
        talk.said.append(("left", f"{seen.name} {seen.ready}"))
        await talk.step("show", client.sandbox(seen.id))
        await talk.step("a container", client.create(seen.id, container("main", "true"), sandbox=own))
        await talk.step("stop", client.stop_sandbox(seen.id))
        await talk.step("remove", client.remove_sandbox(seen.id))
    await talk.step("another attempt", client.run_sandbox(replace(own, attempt=1)))
    talk.said.append(("left", f"{len(await client.sandboxes())}"))


async def nobody(talk: Talk, pod: SandboxConfig) -> None:
    client = talk.client
    await talk.step("container", client.container("nobody"))
    await talk.step("start", client.start("nobody"))
    await talk.step("new log", client.reopen_log("nobody"))
    await talk.step("remove", client.remove("nobody"))
    await talk.step("sandbox", client.sandbox("nobody"))
    await talk.step("remove sandbox", client.remove_sandbox("nobody"))
    talk.said.append(("driver", str(await client.cgroup_driver())))
    talk.said.append(("image", str(await client.image(f"{BUSYBOX}{pod.attempt}"))))
    conditions = await client.conditions()
    talk.said.append(("conditions", str([(one.type, one.ready, one.reason) for one in conditions])))


Story = Callable[[Talk, SandboxConfig], Awaitable[None]]


async def told(story: Story, socket: Path, logs: Path) -> list[tuple[str, str]]:
    logs.mkdir()  # noqa: ASYNC240 - nobody waits
    pod = SandboxConfig(
        uid="7",
        name="pod",
        namespace="default",
        log_directory=str(logs),
        namespaces=NamespaceOptions(host_network=True),
    )
    async with Client(socket) as client:
        talk = Talk(client, logs)
        await story(talk, pod)
        for sandbox in await client.sandboxes():
            await talk.step("clear", client.remove_sandbox(sandbox.id))
    return talk.said


@pytest.mark.parametrize("story", [a_life, endings, sandboxes_end, no_network, nobody])
async def test_both_say_the_same(story: Story) -> None:
    with tempfile.TemporaryDirectory(prefix="cri") as name:
        place = Path(name)
        async with Runtime(place / "cri.sock", directory=place / "work", images=[BUSYBOX]) as runtime:
            runtime.service.network = False
            ours = await told(story, runtime.socket, place / "ours")
        with containerd.containerd(place / "containerd") as daemon:
            theirs = await told(story, daemon.socket, place / "theirs")

    assert ours == theirs

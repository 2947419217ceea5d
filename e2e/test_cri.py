"""The CRI client with a real containerd: configurations take effect, and states and errors are reported."""
# ruff: noqa: S101

import asyncio
import json
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align import bits
from alignup.align.errors import CriError
from alignup.align.workload import Pod
from alignup.run.cri.client import RuntimeClient, parse_endpoint
from alignup.run.cri.pod_cgroups import PodCgroups
from alignup.run.cri.resources import container_resources, pod_cgroup_resources
from alignup.run.cri.types import (
    ContainerConfig,
    ContainerMount,
    ContainerState,
    CriContainer,
    DeviceNode,
    LinuxResources,
    NamespaceOptions,
    SandboxConfig,
    SecurityOptions,
)
from e2e import containerd, disk, guest
from e2e.containerd import BUSYBOX, NOBODY, Containerd
from e2e.guest import Node, Shape
from e2e.node import remove_cgroups
from tests.strategies_pods import guaranteed

WHY = containerd.missing()
HOST = NamespaceOptions(host_network=True)
ABSENT = "localhost/absent:1"
TIMEOUT = 120.0  #: seconds

#: Create, inspect and remove pod cgroups, with and without a process inside.
IN_GUEST = """
import ctypes, json, os
ctypes.CDLL(None).mount(b"cgroup2", b"/sys/fs/cgroup", b"cgroup2", 0, None)
from pathlib import Path
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from alignup.run.cri.pod_cgroups import PodCgroups
from alignup.run.cri.resources import pod_cgroup_resources
def pod(requests, limits):
    read = [{name: Quantity.parse(text) for name, text in one.items()} for one in (requests, limits)]
    return Pod(name="web", uid="1234-abcd", containers=(Container("web", Resources(*read)),))
firm = {"cpu": "500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}
firm, loose = pod(firm, firm), pod({"cpu": "250m"}, {})
groups = PodCgroups()
notes = [groups.set_burstable_shares([loose])]
notes.append(groups.create(firm, pod_cgroup_resources(firm, node_limits=groups.node_limits(memory=256 << 20))))
limits = groups.node_limits(memory=256 << 20)  # now there is a cgroup that shows whether swap is limited
notes[1] += groups.create(firm, pod_cgroup_resources(firm, node_limits=limits))
folder = Path("/sys/fs/cgroup" + groups.parent(firm))
files = ("cpu.weight", "cpu.max", "memory.max", "hugetlb.2MB.max")
read = {name: (folder / name).read_text().strip() for name in files}
(folder / "inner").mkdir()
(folder / "inner" / "cgroup.procs").write_text(str(os.getpid()))
gone = [groups.remove(firm)]
Path("/sys/fs/cgroup/cgroup.procs").write_text(str(os.getpid()))
gone.append(groups.remove(firm))
print(json.dumps({"notes": notes, "files": read, "gone": gone, "unified": limits.unified, "swap": limits.swap,
    "sizes": limits.page_sizes, "burstable": Path("/sys/fs/cgroup/alignup/burstable/cpu.weight").read_text().strip()}))
"""

pytestmark = [pytest.mark.skipif(WHY is not None, reason=str(WHY)), pytest.mark.anyio]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Containerd]:
    with tempfile.TemporaryDirectory(prefix="cri") as place, containerd.containerd(Path(place)) as started:
        yield started


@pytest.fixture
async def runtime(daemon: Containerd) -> AsyncIterator[RuntimeClient]:
    async with RuntimeClient(parse_endpoint(daemon.endpoint)) as made:
        yield made
        for sandbox in await made.sandboxes():
            await made.stop_sandbox(sandbox.id)
            await made.remove_sandbox(sandbox.id)


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> SandboxConfig:
    name = request.node.name.replace("_", "-")
    return SandboxConfig(
        uid=f"uid-{name}",
        name=name,
        namespace="default",
        log_directory=str(tmp_path / "logs"),
        labels={"app": name},
        annotations={"note": "kept"},
        namespaces=HOST,
    )


def shell(script: str, *, name: str = "web", image: str = BUSYBOX, **more: object) -> ContainerConfig:
    fields = {"command": ("/bin/sh", "-c", script), "log_path": f"{name}.log", "namespaces": HOST, **more}
    return ContainerConfig(name=name, image=image, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def started(runtime: RuntimeClient, config: SandboxConfig, container: ContainerConfig) -> AsyncIterator[str]:
    sandbox = await runtime.run_sandbox(config)
    made = await runtime.create(sandbox, container, sandbox=config)
    await runtime.start(made)
    yield made


async def wait_exited(runtime: RuntimeClient, id_: str) -> CriContainer:
    async with asyncio.timeout(TIMEOUT):
        while (seen := await runtime.container(id_)).state is not ContainerState.EXITED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return seen


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def output_of(runtime: RuntimeClient, id_: str, *command: str) -> str:
    done = await runtime.execute(id_, command, seconds=TIMEOUT)
    assert not done.exit_code, done
    return done.output.decode().strip()


async def test_version_and_conditions(runtime: RuntimeClient) -> None:
    identity = await runtime.version()
    conditions = {one.type: one.ready for one in await runtime.conditions()}
    driver = await runtime.cgroup_driver()

    assert (identity.name, identity.api) == ("containerd", "v1")
    assert conditions["RuntimeReady"] is True
    assert driver in {None, "cgroupfs"}


async def test_a_sandbox_matches_its_configuration_and_removal_is_idempotent(
    runtime: RuntimeClient, config: SandboxConfig
) -> None:
    begun = time.time()
    made = await runtime.run_sandbox(config)
    shown, (listed,) = await runtime.sandbox(made), await runtime.sandboxes({"app": config.name})
    await runtime.stop_sandbox(made)
    stopped = await runtime.sandbox(made)
    await runtime.remove_sandbox(made)
    await runtime.stop_sandbox(made)
    await runtime.remove_sandbox(made)

    assert (shown.uid, shown.name, shown.namespace) == (config.uid, config.name, config.namespace)
    assert (shown.labels, shown.annotations, shown.ready) == (config.labels, config.annotations, True)
    assert begun <= shown.created <= time.time()
    assert listed.id == made
    assert not stopped.ready
    assert await runtime.sandboxes({"app": config.name}) == ()
    with pytest.raises(CriError) as gone:
        await runtime.sandbox(made)
    assert gone.value.not_found


async def test_the_container_configuration_takes_effect(
    runtime: RuntimeClient, config: SandboxConfig, tmp_path: Path
) -> None:
    cpu = max(os.sched_getaffinity(0))
    (tmp_path / "shown").write_text("from the host")
    container = shell(
        "sleep 1000",
        attempt=3,
        envs={"B": "two words", "A": "ümlaut"},
        mounts=(ContainerMount(container_path="/mnt/shown", host_path=str(tmp_path / "shown"), read_only=True),),
        devices=(DeviceNode(container_path="/dev/empty", host_path="/dev/null", permissions="r"),),
        working_dir="/mnt",
        labels={"app": config.name},
        security=SecurityOptions(user=1234, group=2345, groups=(3456,), seccomp="Unconfined", no_new_privileges=True),
        resources=LinuxResources(
            cpus=1 << cpu,
            nodes=1,
            cpu_shares=512,
            cpu_quota=50_000,
            cpu_period=100_000,
            memory_limit=64 << 20,
            oom_score_adj=999,
        ),
    )

    async with started(runtime, config, container) as made:
        seen = await runtime.container(made)
        status = await output_of(runtime, made, "cat", "/proc/1/status")
        env = (await output_of(runtime, made, "env")).splitlines()
        identity = await output_of(runtime, made, "id")
        content = await output_of(runtime, made, "cat", "/mnt/shown")
        device = await output_of(runtime, made, "ls", "-l", "/dev/empty")
        where = await output_of(runtime, made, "sh", "-c", "pwd; cat /proc/1/oom_score_adj")
        written = await runtime.execute(made, ["sh", "-c", "echo >/mnt/shown"], seconds=TIMEOUT)

    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (lines["Cpus_allowed_list"], lines["Mems_allowed_list"]) == (str(cpu), "0")
    assert lines["NoNewPrivs"] == "1"
    assert {"B=two words", "A=ümlaut"} <= set(env)
    assert identity == "uid=1234 gid=2345 groups=2345,3456"
    assert content == "from the host"
    assert device.startswith("cr")
    assert where.split() == ["/mnt", "999"]
    assert written.exit_code
    assert (seen.state, seen.attempt, seen.labels, seen.image) == (
        ContainerState.RUNNING,
        3,
        {"app": config.name},
        BUSYBOX,
    )
    assert seen.sandbox == (await runtime.containers({"app": config.name}))[0].sandbox
    assert seen.pid is not None
    assert os.getpgid(seen.pid) > 0


async def test_cpusets_are_set_and_updated(runtime: RuntimeClient, config: SandboxConfig) -> None:
    cpus = bits.of(os.sched_getaffinity(0))
    first = cpus & -cpus
    container = shell("sleep 1000", resources=LinuxResources(cpus=first, nodes=1, cpu_shares=2))

    async with started(runtime, config, container) as made:
        pid = (await runtime.container(made)).pid
        before = os.sched_getaffinity(pid or 0)
        await runtime.update(made, LinuxResources(cpus=cpus))
        after = os.sched_getaffinity(pid or 0)

    assert before == set(bits.members(first))
    assert after == set(bits.members(cpus))


async def test_pod_and_container_limits_are_in_the_cgroups(runtime: RuntimeClient, config: SandboxConfig) -> None:
    groups = PodCgroups(root=f"alignup-e2e-{uuid.uuid4().hex[:8]}")
    container = guaranteed("web", {"cpu": "500m", "memory": "64Mi"})
    pod = Pod(name="web", uid="1234-abcd", containers=(container,))
    limits_of_node = groups.node_limits(memory=8 << 30)
    parent = groups.parent(pod)
    top = groups.mount if limits_of_node.unified else groups.mount / "memory"
    limit = "memory.max" if limits_of_node.unified else "memory.limit_in_bytes"

    notes = groups.create(pod, pod_cgroup_resources(pod, node_limits=limits_of_node))
    made = shell("sleep 1000", resources=container_resources(pod, container, node_limits=limits_of_node))
    async with started(runtime, replace(config, cgroup_parent=parent), made) as id_:
        inside = [f"{top}{parent}/{limit}", f"{top}{parent}/{id_}/{limit}"]
        limits = [await asyncio.to_thread(Path(path).read_text) for path in inside]
        busy = groups.remove(pod)
        sandbox = (await runtime.container(id_)).sandbox
        await runtime.stop_sandbox(sandbox)
        await runtime.remove_sandbox(sandbox)
    gone = groups.remove(pod)
    await asyncio.to_thread(remove_cgroups, groups.root)

    assert notes == ()
    assert [int(text) for text in limits] == [64 << 20, 64 << 20]
    assert (busy, gone) == (False, True)


async def test_the_user_of_an_image(runtime: RuntimeClient, config: SandboxConfig) -> None:
    image, other = await runtime.image(NOBODY), await runtime.image(BUSYBOX)
    async with started(runtime, config, shell("sleep 1000", image=NOBODY)) as made:
        user = await output_of(runtime, made, "id", "-u")

    assert image is not None
    assert other is not None
    assert NOBODY in image.tags
    assert (image.user, user) == (65534, "65534")
    assert image.id != other.id
    assert await runtime.image(ABSENT) is None


async def test_logs_are_written_and_reopened(runtime: RuntimeClient, config: SandboxConfig, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "web.log"

    async with started(runtime, config, shell("echo one; while sleep 0.1; do echo two; done")) as made:
        await wait_for(lambda: log.exists() and "two" in log.read_text())
        log.rename(log.with_suffix(".old"))
        await runtime.reopen_log(made)
        await wait_for(lambda: "two" in log.read_text())
        await runtime.stop(made, grace=0)

    old, new = log.with_suffix(".old").read_text().splitlines(), log.read_text().splitlines()
    assert old[0].split(" ")[1:] == ["stdout", "F", "one"]
    assert new
    assert {line.split(" ")[3] for line in new} == {"two"}


async def test_exec_results_and_timeouts(runtime: RuntimeClient, config: SandboxConfig) -> None:
    async with started(runtime, config, shell("sleep 1000")) as made:
        done = await runtime.execute(made, ["sh", "-c", "echo out; echo err >&2; exit 3"], seconds=TIMEOUT)
        with pytest.raises(CriError) as late:
            await runtime.execute(made, ["sleep", "1000"], seconds=0.5)
        with pytest.raises(CriError) as absent:
            await runtime.execute(made, ["/no/such/program"], seconds=TIMEOUT)

    assert (done.exit_code, done.output, done.errors) == (3, b"out\n", b"err\n")
    assert late.value.timed_out
    assert "run /no/such/program in container" in str(absent.value)
    assert not absent.value.timed_out


@pytest.mark.parametrize(
    ("script", "grace", "code"),
    [
        pytest.param("trap 'exit 7' TERM; echo ready; while sleep 0.1; do :; done", 99, 7, id="it-handles-the-signal"),
        pytest.param("trap '' TERM; echo ready; while sleep 0.1; do :; done", 1, 137, id="it-ignores-the-signal"),
        pytest.param("echo ready; exit 5", 1, 5, id="it-has-exited"),
    ],
)
async def test_stopping_a_container(
    runtime: RuntimeClient, config: SandboxConfig, script: str, *, grace: float, code: int
) -> None:
    log = Path(config.log_directory, "web.log")
    async with started(runtime, config, shell(script)) as made:
        await wait_for(lambda: log.exists() and "ready" in log.read_text())
        if code == 5:
            await wait_exited(runtime, made)
        await runtime.stop(made, grace=grace)
        seen = await wait_exited(runtime, made)
        await runtime.remove(made)
        await runtime.remove(made)
        await runtime.stop(made, grace=grace)

    assert seen.exit_code == code
    assert seen.reason == "Error"
    # containerd may record the exit of a short-lived container before its start.
    assert seen.created <= min(seen.started, seen.finished)
    assert seen.pid is None


async def test_a_container_over_its_memory_limit_is_oom_killed(runtime: RuntimeClient, config: SandboxConfig) -> None:
    hog = shell("head -c 200000000 /dev/zero | tail -n 1", resources=LinuxResources(memory_limit=16 << 20))

    async with started(runtime, config, hog) as made:
        seen = await wait_exited(runtime, made)

    assert (seen.exit_code, seen.reason) == (137, "OOMKilled")


async def test_a_missing_image_is_reported(runtime: RuntimeClient, config: SandboxConfig) -> None:
    sandbox = await runtime.run_sandbox(config)

    with pytest.raises(CriError) as made:
        await runtime.create(sandbox, shell("true", image=ABSENT), sandbox=config)
    with pytest.raises(CriError) as pulled:
        await runtime.pull(ABSENT)

    assert made.value.image_missing
    assert str(made.value) == f"the container runtime failed to create container web: the image {ABSENT} is missing"
    assert f"the container runtime failed to pull image {ABSENT}: " in str(pulled.value)
    assert not pulled.value.unavailable


async def test_a_missing_program_is_not_a_missing_image(runtime: RuntimeClient, config: SandboxConfig) -> None:
    sandbox = await runtime.run_sandbox(config)
    made = await runtime.create(sandbox, ContainerConfig(name="web", image=BUSYBOX, command=("/none",)), sandbox=config)

    with pytest.raises(CriError, match="failed to start container") as rejected:
        await runtime.start(made)
    seen = await runtime.container(made)

    assert not rejected.value.image_missing
    assert (seen.state, seen.exit_code) == (ContainerState.EXITED, 128)


async def test_the_client_reconnects_to_a_restarted_runtime(
    runtime: RuntimeClient, daemon: Containerd, config: SandboxConfig
) -> None:
    async with started(runtime, config, shell("sleep 1000")) as made:
        before = await runtime.container(made)
        daemon.kill()
        with pytest.raises(CriError) as away:
            await runtime.container(made)
        daemon.start()
        after = None
        async with asyncio.timeout(TIMEOUT):
            while after is None:
                try:
                    after = await runtime.container(made)
                except CriError as error:
                    if not error.unavailable:
                        raise
                    await asyncio.sleep(0.05)

    assert away.value.unavailable
    assert f"no server listens at {daemon.socket}" in str(away.value)
    assert after == before


async def test_clearing_containerd_leaves_nothing(config: SandboxConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="cri") as place:
        with containerd.containerd(Path(place)) as daemon:
            async with RuntimeClient(daemon.socket) as runtime, started(runtime, config, shell("sleep 1000")) as made:
                pid = (await runtime.container(made)).pid or 0
            groups = await asyncio.to_thread(Path(f"/proc/{pid}/cgroup").read_text)
        mounts = await asyncio.to_thread(Path("/proc/self/mountinfo").read_text)

    assert made in groups
    assert place not in mounts
    assert not await asyncio.to_thread(_is_running, pid)
    assert not [found for found in await asyncio.to_thread(_cgroup_directories) if made in found]


@pytest.mark.skipif(guest.missing() is not None, reason=str(guest.missing()))
def test_pod_cgroups_with_cgroup_v2(tmp_path: Path) -> None:
    shape = Shape(sockets=1, cores=2, threads=1, nodes=(Node(256, "0-1"),))

    seen = json.loads(guest.run(shape, IN_GUEST, image=disk.make(tmp_path)).splitlines()[-1])

    assert seen["notes"] == [[], []]
    assert seen["files"] == {
        "cpu.weight": "20",
        "cpu.max": "50000 100000",
        "memory.max": str(64 << 20),
        "hugetlb.2MB.max": str(4 << 20),
    }
    assert seen["burstable"] == "10"
    assert (seen["unified"], seen["sizes"], seen["swap"]) == (True, [2 << 20], True)
    assert seen["gone"] == [False, True]


def _is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _cgroup_directories() -> list[str]:
    return [place for place, _, _ in os.walk("/sys/fs/cgroup")]

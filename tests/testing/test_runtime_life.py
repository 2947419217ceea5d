"""Sandboxes and containers of the test runtime, from creation to removal."""

import os
import signal
import time
from dataclasses import replace

import grpc
import pytest

from alignup.align.errors import CriError
from alignup.kubernetes.plugins.rpc import StatusError
from alignup.run.cri.types import ContainerConfig, ContainerMount, ContainerState
from alignup.wire import cri_pb2 as wire
from tests.deadlines import until
from tests.testing.runtimes import is_running, pod, runtime_and_client, shell, start_container, wait_exited

pytestmark = pytest.mark.anyio

FOREVER = shell("sleep 1000")


async def test_a_container_is_created_runs_and_exits(runtime, client):
    sandbox = await client.run_sandbox(pod())
    made = await client.create(sandbox, shell("exit 0"), sandbox=pod())
    created = await client.container(made)

    await client.start(made)
    seen = await wait_exited(client, made)
    await client.remove(made)

    assert (created.state, created.sandbox, created.started, created.pid) == (
        ContainerState.CREATED,
        sandbox,
        0.0,
        None,
    )
    assert (seen.exit_code, seen.reason) == (0, "Completed")
    assert created.created < seen.started < seen.finished <= time.time()
    assert await client.containers() == ()


async def test_a_running_container_is_a_process(client):
    made = await start_container(client, FOREVER)
    seen = await client.container(made)

    assert seen.state == ContainerState.RUNNING
    assert seen.pid
    assert os.getsid(seen.pid) == seen.pid
    assert is_running(seen.pid)


@pytest.mark.parametrize(
    ("script", "grace", "code", "reason"),
    [
        pytest.param("exit 3", None, 3, "Error", id="an error"),
        pytest.param("kill -SEGV $$", None, 139, "Error", id="a signal"),
        pytest.param("sleep 1000", 30, 143, "Error", id="SIGTERM"),
        pytest.param(
            "trap 'exit 0' TERM; echo > ready; while :; do sleep 0.01; done", 30, 0, "Completed", id="SIGTERM handled"
        ),
        pytest.param("sleep 1000", 0, 137, "Error", id="no grace"),
    ],
)
async def test_exit_codes_and_reasons(both, script, grace, code, reason):
    runtime, client = both
    made = await start_container(client, shell(script))
    if "ready" in script:
        await until((runtime.directory / "ready").exists)
    if grace is not None:
        await client.stop(made, grace=grace)

    seen = await wait_exited(client, made)

    assert (seen.exit_code, seen.reason) == (code, reason)


async def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(runtime, client):
    made = await start_container(client, shell("trap '' TERM; echo > ready; while :; do sleep 0.01; done"))
    await until((runtime.directory / "ready").exists)

    await runtime.container("main").stop(0.05)
    seen = await client.container(made)

    assert (seen.state, seen.exit_code, seen.reason) == (ContainerState.EXITED, 137, "Error")


async def test_descendants_end_with_the_container(runtime, client):
    made = await start_container(client, shell("sleep 1000 & echo $! > child; wait"))
    child = runtime.directory / "child"
    await until(lambda: child.exists() and child.read_text().strip() != "")

    runtime.kill("main")
    seen = await wait_exited(client, made)

    assert seen.exit_code == 137
    await until(lambda: not is_running(int(child.read_text())))


async def test_the_environment_of_a_container(root, client, runtime):
    config = shell(
        'echo "$GREETING" "$MOUNT_dev_termination_log" "$(pwd)" "$(env | wc -l)"',
        envs={"GREETING": "hello"},
        mounts=(ContainerMount(container_path="/dev/termination-log", host_path="/somewhere/1"),),
        working_dir="/usr",
        log_path="main.log",
    )

    await wait_exited(client, await start_container(client, config, sandbox=pod(logs=root)))

    output = (root / "main.log").read_text().split()[3:]
    assert output[:3] == ["hello", "/somewhere/1", "/usr"]
    assert int(output[3]) <= 7, "those that were given, and those the shell sets"


async def test_a_missing_working_directory_is_replaced(root, client, runtime):
    config = shell("pwd", working_dir="/no/such/root", log_path="main.log")

    await wait_exited(client, await start_container(client, config, sandbox=pod(logs=root)))

    assert (root / "main.log").read_text().split()[3:] == [str(runtime.directory)]


async def test_stdin_stays_open_if_requested(client):
    without = await start_container(client, shell("cat"))
    with_it = await start_container(client, shell("cat", stdin=True), sandbox=pod("other"))

    assert (await wait_exited(client, without)).exit_code == 0
    assert (await client.container(with_it)).state == ContainerState.RUNNING


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(
            ContainerConfig(name="main", image="busybox", command=("no-such-program",)),
            'exec: "no-such-program": executable file not found in $PATH',
            id="not in PATH",
        ),
        pytest.param(
            ContainerConfig(name="main", image="busybox", command=("/no/such/program",)),
            'exec: "/no/such/program": stat /no/such/program: no such file or directory',
            id="a missing file",
        ),
        pytest.param(
            ContainerConfig(name="main", image="busybox", command=("/etc/passwd",)),
            'exec: "/etc/passwd": permission denied',
            id="not executable",
        ),
        pytest.param(
            shell("true", log_path="cri.sock/log"), "failed to create container loggers", id="an invalid log path"
        ),
    ],
)
async def test_a_container_that_cannot_start_has_exited(root, client, config, text):
    made = await client.create(await client.run_sandbox(pod(logs=root)), config, sandbox=pod(logs=root))

    with pytest.raises(CriError) as caught:
        await client.start(made)
    seen = await client.container(made)

    assert text in str(caught.value)
    assert (seen.state, seen.exit_code, seen.reason) == (ContainerState.EXITED, 128, "StartError")
    assert text in seen.message


async def test_a_container_starts_once(client):
    made = await start_container(client, FOREVER)

    with pytest.raises(CriError, match="container is in CONTAINER_RUNNING state"):
        await client.start(made)


async def test_names_are_reserved_until_removal(client):
    sandbox = await client.run_sandbox(pod())
    made = await client.create(sandbox, FOREVER, sandbox=pod())

    with pytest.raises(CriError, match=f'name "web_default_uid-of-web_0" is reserved for "{sandbox}"'):
        await client.run_sandbox(pod())
    with pytest.raises(CriError, match=f'name "main_web_default_uid-of-web_0" is reserved for "{made}"'):
        await client.create(sandbox, FOREVER, sandbox=pod())

    await client.create(sandbox, replace(FOREVER, attempt=1), sandbox=pod())
    await client.remove(made)
    await client.create(sandbox, FOREVER, sandbox=pod())
    await client.remove_sandbox(sandbox)
    await client.run_sandbox(pod())


async def test_stopping_a_sandbox_stops_its_containers(client):
    made = await start_container(client, FOREVER)
    (sandbox,) = await client.sandboxes()
    waiting = await client.create(sandbox.id, shell("true", name="other"), sandbox=pod())

    await client.stop_sandbox(sandbox.id)
    await client.stop_sandbox(sandbox.id)

    assert (await client.container(made)).exit_code == 137
    assert not (await client.sandbox(sandbox.id)).ready
    with pytest.raises(CriError, match="is not running"):
        await client.start(waiting)
    assert (await client.container(waiting)).reason == "StartError"
    with pytest.raises(CriError, match="no running task found"):
        await client.create(sandbox.id, shell("true", name="third"), sandbox=pod())

    await client.remove_sandbox(sandbox.id)
    assert (await client.sandboxes(), await client.containers()) == ((), ())


async def test_removal_kills_running_containers(client):
    made = await start_container(client, FOREVER)
    pid = (await client.container(made)).pid
    await client.remove(made)
    again = await start_container(client, FOREVER, sandbox=pod("other"))
    await client.remove_sandbox((await client.container(again)).sandbox)

    assert pid
    assert not is_running(pid)
    assert await client.containers() == ()


async def test_missing_containers_can_only_be_removed(runtime, client):
    await client.remove("missing")
    await client.remove_sandbox("missing")

    for call in (client.container("missing"), client.sandbox("missing"), client.start("missing")):
        with pytest.raises(CriError) as caught:
            await call
        assert caught.value.not_found
    for call in (
        runtime.stop_container(wire.StopContainerRequest(container_id="missing")),
        runtime.stop_pod_sandbox(wire.StopPodSandboxRequest(pod_sandbox_id="missing")),
    ):
        with pytest.raises(StatusError) as rejected:
            await call
        assert rejected.value.code == grpc.StatusCode.NOT_FOUND


async def test_lists_can_be_filtered(runtime, client):
    one = await start_container(client, replace(FOREVER, labels={"tier": "front"}))
    other = await start_container(client, shell("true", name="job"), sandbox=pod("batch"))
    await wait_exited(client, other)
    sandboxes = {seen.name: seen.id for seen in await client.sandboxes()}

    async def names(**wanted) -> list[str]:
        request = wire.ListContainersRequest(filter=wire.ContainerFilter(**wanted))
        listed = await runtime.list_containers(request)
        return [seen.metadata.name for seen in listed.containers]

    assert [seen.name for seen in await client.sandboxes({"app": "batch"})] == ["batch"]
    assert [seen.id for seen in await client.containers()] == [one, other]
    assert await names(label_selector={"tier": "front"}) == ["main"]
    assert await names(label_selector={"tier": "front", "app": "x"}) == []
    assert await names(pod_sandbox_id=sandboxes["batch"]) == ["job"]
    assert await names(id=one) == ["main"]
    assert await names(state=wire.ContainerStateValue(state=wire.ContainerState.CONTAINER_EXITED)) == ["job"]
    assert await names(state=wire.ContainerStateValue(state=wire.ContainerState.CONTAINER_CREATED)) == []


async def test_a_pod_off_the_host_network_has_an_ip(runtime, client):
    own = await client.run_sandbox(pod("own", host_network=False))
    shared = await client.run_sandbox(pod("shared"))

    assert (await client.sandbox(own)).ips == ("127.0.0.1",)
    assert (await client.sandbox(shared)).ips == ()


async def test_without_a_network_only_host_network_pods_run(runtime, client):
    runtime.network = False

    conditions = {one.type: one for one in await client.conditions()}
    await client.run_sandbox(pod())
    with pytest.raises(CriError, match="cni plugin not initialized"):
        await client.run_sandbox(pod("own", host_network=False))

    left = (await client.sandboxes({"app": "own"}))[0]
    with pytest.raises(CriError, match="failed to destroy network"):
        await client.remove_sandbox(left.id)
    runtime.network = True
    await client.remove_sandbox(left.id)

    assert not left.ready
    assert conditions["RuntimeReady"].ready
    assert (conditions["NetworkReady"].ready, conditions["NetworkReady"].reason) == (False, "NetworkPluginNotReady")


@pytest.mark.parametrize("driver", ["", "systemd", "cgroupfs"])
async def test_version_and_cgroup_driver(runtime, client, driver):
    runtime.cgroup_driver = driver

    assert (await client.version()).name == "alignup-testing"
    assert await client.cgroup_driver() == (driver or None)


async def test_exec_runs_a_command(client):
    made = await start_container(client, shell("sleep 1000", envs={"GREETING": "hello"}))

    seen = await client.execute(made, ("sh", "-c", "echo $GREETING; echo trouble >&2; exit 4"), seconds=10)

    assert (seen.exit_code, seen.output, seen.errors) == (4, b"hello\n", b"trouble\n")


async def test_exec_times_out(runtime, client):
    await start_container(client, FOREVER)
    child, seconds = runtime.directory / "child", 0.05

    while not child.exists():  # on a busy machine, the command may end before its first instruction
        with pytest.raises(StatusError, match="exceeded: context deadline exceeded") as caught:
            await runtime.container("main").execute(
                ("sh", "-c", "echo $$ > new; mv new child; exec sleep 1000"), seconds=seconds
            )
        seconds *= 2

    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not is_running(int(child.read_text()))


async def test_exec_needs_a_running_container(client):
    made = await start_container(client, FOREVER)
    with pytest.raises(CriError, match="executable file not found"):
        await client.execute(made, ("no-such-program",), seconds=10)
    await client.stop(made, grace=0)

    with pytest.raises(CriError, match="container is in CONTAINER_EXITED state"):
        await client.execute(made, ("true",), seconds=10)


async def test_updates_accumulate(runtime, client):
    made = await start_container(client, FOREVER)
    container = runtime.container("main")

    for linux in (
        wire.LinuxContainerResources(cpuset_cpus="0-3", cpu_shares=2),
        wire.LinuxContainerResources(cpuset_cpus="1", hugepage_limits=[wire.HugepageLimit(page_size="2MB", limit=1)]),
        wire.LinuxContainerResources(hugepage_limits=[wire.HugepageLimit(page_size="2MB", limit=2)]),
    ):
        await _update(runtime, made, linux)

    assert (container.resources.cpuset_cpus, container.resources.cpu_shares) == ("1", 2)
    assert [limit.limit for limit in container.resources.hugepage_limits] == [2]
    assert [request.container_id for request in runtime.requests("UpdateContainerResources")] == [made] * 3


async def _update(runtime, made: str, linux: wire.LinuxContainerResources) -> None:
    async with grpc.aio.insecure_channel(f"unix:{runtime.socket}") as line:
        ask: grpc.aio.UnaryUnaryMultiCallable = line.unary_unary(
            "/runtime.v1.RuntimeService/UpdateContainerResources",
            request_serializer=wire.UpdateContainerResourcesRequest.SerializeToString,
        )
        await ask(wire.UpdateContainerResourcesRequest(container_id=made, linux=linux))


async def test_an_invalid_cpuset_is_rejected(runtime, client):
    made = await start_container(client, FOREVER)

    with pytest.raises(grpc.aio.AioRpcError, match="invalid cpuset"):
        await _update(runtime, made, wire.LinuxContainerResources(cpuset_cpus="all"))
    request = wire.CreateContainerRequest(pod_sandbox_id=runtime.sandboxes[0].id, config=_config(cpus="all"))
    with pytest.raises(StatusError, match="invalid cpuset"):
        await runtime.create_container(request)

    assert runtime.container("main").resources.cpuset_cpus == ""


def _config(*, cpus: str) -> wire.ContainerConfig:
    linux = wire.LinuxContainerConfig(resources=wire.LinuxContainerResources(cpuset_cpus=cpus))
    return wire.ContainerConfig(image=wire.ImageSpec(image="busybox"), command=["true"], linux=linux)


async def test_containers_can_be_bound_to_cpus(root):
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    given = wire.LinuxContainerResources(cpuset_cpus=f"{first},4000")
    async with runtime_and_client(root, affinity=True) as (runtime, client):
        made = await start_container(client, shell("sleep 1000 & echo $! > child; wait"))
        child = runtime.directory / "child"
        await until(lambda: child.exists() and child.read_text().strip() != "")

        await _update(runtime, made, given)
        bound = [os.sched_getaffinity(pid) for pid in (runtime.container("main").pid, int(child.read_text()))]
        await _update(runtime, made, wire.LinuxContainerResources(cpuset_cpus=f"{last}"))
        moved = os.sched_getaffinity(runtime.container("main").pid)
        output = await client.execute(made, ("cat", "/proc/self/status"), seconds=10)

    assert bound == [{first}, {first}]
    assert moved == {last}
    assert f"Cpus_allowed_list:\t{last}\n".encode() in output.output


async def test_a_container_may_be_oom_killed(runtime, client):
    made = await start_container(client, FOREVER)

    runtime.kill("main", reason="OOMKilled")
    seen = await wait_exited(client, made)

    assert (seen.exit_code, seen.reason) == (137, "OOMKilled")


async def test_kill_signals_the_newest_container_of_a_name(runtime, client):
    made = await start_container(client, shell("trap 'exit 7' USR1; echo > ready; while :; do sleep 0.01; done"))
    await until((runtime.directory / "ready").exists)

    runtime.kill("main", signal.SIGUSR1)

    assert (await wait_exited(client, made)).exit_code == 7
    with pytest.raises(KeyError):
        runtime.container("missing")

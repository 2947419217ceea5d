"""``alignup nri`` as a process, at a scripted runtime."""

import asyncio
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.state_files import CPU_FILE, CpuState, dump_cpu_state
from alignup.testing.api_server import ApiServer
from alignup.wire import nri_pb2 as wire
from tests.console_runner import ROOT
from tests.deadlines import until
from tests.kubernetes.api.objects import node as node_object
from tests.nri.kubelet_node import resources
from tests.nri.runtime import ScriptedRuntime, next_plugin

pytestmark = pytest.mark.anyio

EVENTS = (
    *(wire.CREATE_CONTAINER, wire.POST_CREATE_CONTAINER, wire.UPDATE_CONTAINER, wire.STOP_CONTAINER),
    *(wire.REMOVE_CONTAINER, wire.REMOVE_POD_SANDBOX),
)


def write_state(directory, default):
    state = CpuState(policy="static", default=default)
    (directory / "new").write_bytes(dump_cpu_state(state, gates=FeatureGates()))
    (directory / "new").rename(directory / CPU_FILE)


def write_machine(root):
    """Two NUMA nodes of two CPUs."""
    files = {"cpu/online": "0-3", "node/node0/cpulist": "0-1", "node/node1/cpulist": "2-3"}
    for cpu in range(4):
        files |= {f"cpu/cpu{cpu}/topology/physical_package_id": "0", f"cpu/cpu{cpu}/topology/core_id": str(cpu)}
    for name, text in files.items():
        path = root / "sys" / "devices" / "system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@asynccontextmanager
async def started(place, *words):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "alignup", "nri", "--socket", str(place / "nri.sock"), "--kubelet-dir", str(place)),
        *("--host-root", str(place / "host"), "--period", "0.1", *words),
        env={"PYTHONPATH": ":".join(sys.path)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def shown(updates):
    return [(update.container_id, update.linux.resources.cpu.cpus) for update in updates]


def capabilities(pid):
    """Return the Linux capabilities that a process can use or get."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines if line.startswith(("CapEff", "CapPrm")))


def documented_metrics():
    return set(re.findall(r"^\| `(alignup_nri_\w+)", (ROOT / "docs" / "nri.md").read_text(), re.MULTILINE))


@pytest.fixture
def port():
    """Yield a port at which a program can listen; other programs are not given it meanwhile."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


async def test_it_registers_assists_follows_the_pool_and_stops(short_path, port):
    write_machine(short_path / "host")
    write_state(short_path, 0b1111)
    runtime = ScriptedRuntime()
    pod, other = (wire.PodSandbox(id=f"s-{uid}", uid=uid) for uid in "ab")
    first, second = (wire.Container(id=f"c-{uid}", pod_sandbox_id=f"s-{uid}", name="app") for uid in "ab")
    for container in (first, second):
        container.linux.resources.CopyFrom(resources(cpus="0-3", milli=500))
    async with (
        runtime.listening(short_path / "nri.sock"),
        started(short_path, "--listen", f"127.0.0.1:{port}") as process,
    ):
        called = await next_plugin(runtime)
        assert (await asyncio.to_thread(get, port, "/readyz"))[0] == 503
        assert await called.configure(nri="v0.12.2") == sum(1 << event - 1 for event in EVENTS)
        synchronized = await called.synchronize([pod], [first])
        assert [update.linux.resources.cpu.cpus for update in synchronized.update] == ["0-1"]
        created = await called.create(other, second)
        assert created.adjust.linux.resources.cpu.cpus == "2-3"
        assert await asyncio.to_thread(get, port, "/readyz") == (200, "ok\n")
        assert capabilities(process.pid) == 0
        metrics = (await asyncio.to_thread(get, port, "/metrics"))[1]
        assert set(re.findall(r"^# HELP (alignup_nri_\w+)", metrics, re.MULTILINE)) == documented_metrics()
        assert "alignup_nri_connected 1" in metrics
        assert 'alignup_nri_shared_pods{numa_nodes="1"} 2' in metrics

        await until(lambda: shown(runtime.updates) == [("c-a", "0-1")])  # once more, since that can fail
        await called.notify(wire.POST_CREATE_CONTAINER, other, second)
        write_state(short_path, 0b0011)
        await until(lambda: shown(runtime.updates) == [("c-a", "0-1"), ("c-b", "0-1")])
        runtime.disconnect()
        await (await next_plugin(runtime)).synchronize()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_it_says_why_it_cannot_start(short_path):
    write_machine(short_path / "host")
    async with started(short_path) as process:
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 1
        assert errors == (
            f"alignup: {short_path}/cpu_manager_state: no such file; start the kubelet, or name its directory "
            "(--kubelet-dir)\n  Run 'alignup doctor' to check the kubelet.\n"
        )


KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: {policy}
reservedSystemCPUs: "0"
"""
AMOUNTS = {"cpu": "1", "memory": "64Mi"}
GUARANTEED = {"limits": AMOUNTS, "requests": AMOUNTS}


def api_pod(uid):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": "host-a", "containers": [{"name": "app", "resources": GUARANTEED}]},
        "status": {"phase": "Pending"},
    }


async def decide(server, place, *words, policy="none"):
    """Prepare a node in decide mode; return the words that start it."""
    write_machine(place / "host")
    for node in range(2):
        path = place / "host" / "sys" / "devices" / "system" / "node" / f"node{node}" / "meminfo"
        path.write_text(f"Node {node} MemTotal: 1000000 kB\n")
    (place / "config.yaml").write_text(KUBELET.format(policy=policy))
    server.put(node_object())
    server.write_kubeconfig(place / "kubeconfig")
    return (
        *("--mode", "decide", "--no-configz", "--node", "host-a", "--kubeconfig", str(place / "kubeconfig")),
        *("--state-dir", str(place / "state"), *words),
    )


async def test_it_decides_stores_releases_and_resumes(short_path):
    runtime = ScriptedRuntime()
    async with ApiServer() as server, runtime.listening(short_path / "nri.sock"):
        words = await decide(server, short_path, "--policy", "single-numa-node")
        server.put(api_pod("a"))
        sandbox = wire.PodSandbox(id="s", uid="a", name="a", namespace="default")
        container = wire.Container(id="c", pod_sandbox_id="s", name="app", state=wire.CONTAINER_RUNNING)
        async with started(short_path, *words):
            called = await next_plugin(runtime)
            await called.configure(version="2.3.4", nri="v0.12.2")
            await called.synchronize()
            await called.call("RunPodSandbox", wire.NotificationRequest(pod=sandbox), wire.Empty)
            cpu = (await called.create(sandbox, container)).adjust.linux.resources.cpu
            assert (cpu.cpus, cpu.mems) == ("1", "0")
            await until(lambda: '"default/a"' in read_text(short_path / "state" / "placements.json"))
        async with started(short_path, *words):  # it was killed
            called = await next_plugin(runtime)
            await called.configure(version="2.3.4", nri="v0.12.2")
            (update,) = (await called.synchronize([sandbox], [container])).update
            assert update.linux.resources.cpu.cpus == "1"


async def test_it_does_not_start_beside_a_static_kubelet(short_path):
    async with ApiServer() as server:
        words = await decide(server, short_path, policy="static")
        async with started(short_path, *words) as process:
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert "the kubelet has cpuManagerPolicy: static" in errors.decode()


async def test_options_of_decide_mode_need_it(short_path):
    async with started(short_path, "--policy", "restricted", "--host-root", "/") as process:
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert "--policy" in errors.decode()
    assert "Add --mode decide." in errors.decode()


def read_text(path):
    return path.read_text() if path.exists() else ""

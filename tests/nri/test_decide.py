"""Decide mode with a runtime that obeys it: placements, devices, rejections, restarts, and many pods at once."""

import asyncio
import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.claims.resource_claims import DeviceId, Slice, SliceDevice
from alignup.align.errors import StoreError, StoreProblem
from alignup.align.machine import HugePages
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.align.workload.pod import PodClaim
from alignup.kubernetes.api.node_tables import KnownSlices
from alignup.machines import load_machine
from alignup.machines.synthetic import parse
from alignup.nri.node_pods import NodePods
from alignup.nri.nri_plugin import PluginConnection
from alignup.nri.ttrpc import RpcError
from alignup.placement.host_report import PodStage
from alignup.wire import nri_pb2 as wire
from tests.align.hosts import GIB, make_pod
from tests.nri.decided_node import DecidedNode
from tests.nri.runtime import ScriptedRuntime, next_plugin
from tests.short_paths import short_directory
from tests.strategies_pods import guaranteed

MANY = 100
EXAMPLE = load_machine(Path(__file__).parents[2] / "examples" / "locality" / "machine.yaml")
DEADLINE = 2.0

pytestmark = pytest.mark.anyio


@pytest.fixture
def new_node(tmp_path):
    """A node whose plugin has not started."""
    return DecidedNode(tmp_path)


@pytest.fixture
async def node(new_node, anyio_backend):
    await new_node.start()
    return new_node


def shared_pod(uid):
    amounts = {"cpu": Quantity.parse("100m")}
    return Pod(name=uid, uid=uid, containers=(Container("app", Resources(requests=amounts)),))


def remembered(plugin):
    return {name: value for name, value in vars(plugin).items() if isinstance(value, dict | set)}


def environment(adjust):
    return {pair.key: pair.value for pair in adjust.env}


async def test_a_guaranteed_pod_gets_cpus_memory_and_environment_on_one_numa_node(node):
    adjust = (await node.run(make_pod("a", cpu="4")))["app"]
    cpu = adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems) == ("4-7", "1")
    assert environment(adjust) == {
        "ALIGNUP_CPUS": "4-7",
        "ALIGNUP_NUMA_NODES": "1",
        "ALIGNUP_MEMORY_NODES": "1",
    }


async def test_cpus_and_memory_follow_the_device_that_the_kubelet_chose(node):
    pod = make_pod("a", gpu="1")
    node.give(pod, **{"gpu-1": 1})
    adjust = (await node.run(pod))["app"]
    cpu = adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems) == ("4-5", "1")
    assert environment(adjust)["ALIGNUP_DEVICES_EXAMPLE_COM_GPU"] == "gpu-1"


async def test_cpus_and_memory_follow_the_device_of_a_claim(new_node):
    id_ = DeviceId("gpu.example.com", "host-a", "gpu-0")
    attributes = {"resource.kubernetes.io/numaNode": 1}
    slice_ = Slice(
        name="slice",
        generation=1,
        driver=id_.driver,
        pool=id_.pool,
        devices=(SliceDevice(id_, attributes),),
        slice_count=1,
    )
    new_node.slices = KnownSlices((slice_,))
    await new_node.start()
    pod = _with_claim(make_pod("a"))
    new_node.give(pod, claims={"default/gpu": (id_,)})
    cpu = (await new_node.run(pod))["app"].linux.resources.cpu
    assert (cpu.cpus, cpu.mems) == ("4-5", "1")


NEAR = {DEVICES_ANNOTATION: "same-root=example.com/gpu"}


async def test_devices_that_do_not_satisfy_a_demand_reject_the_pod(new_node):
    new_node.machine = replace(EXAMPLE, devices=())
    new_node.policy = Policy.NONE
    await new_node.start()
    near, far, unknown = (make_pod(uid, annotations=NEAR, gpu="2") for uid in ("near", "far", "unknown"))
    new_node.give(near, **{"0000:11:00.0": 0, "0000:14:00.0": 0})
    new_node.give(far, **{"0000:21:00.0": 0, "0000:42:00.0": 1})
    new_node.give(unknown, **{"gpu-x": 0, "0000:43:00.0": 1})
    await new_node.run(near)
    message = "container app: the devices do not satisfy same-root=example.com/gpu: 0000:21:00.0 and 0000:42:00.0 have"
    with pytest.raises(RpcError, match=message):
        await new_node.run(far)
    with pytest.raises(RpcError, match=r"the PCI address of gpu-x .example.com/gpu. is not known"):
        await new_node.run(unknown)
    assert set(new_node.durable.host.ledger.pods) == {"near"}


@pytest.mark.parametrize(("address", "accepted"), [("0000:2f:00.0", False), ("0000:1f:00.0", True)])
async def test_devices_of_claims_have_to_satisfy_a_demand_too(new_node, address, accepted):
    new_node.machine = replace(EXAMPLE, devices=())
    new_node.policy = Policy.NONE
    id_ = DeviceId("nic.example.com", "node", "nic-0")
    attributes = {"resource.kubernetes.io/pciBusID": address}
    devices = (SliceDevice(id_, attributes),)
    slice_ = Slice(name="s", driver=id_.driver, pool=id_.pool, generation=1, devices=devices, slice_count=1)
    new_node.slices = KnownSlices((slice_,))
    await new_node.start()
    demand = {DEVICES_ANNOTATION: "same-switch=example.com/gpu,gpu"}
    pod = _with_claim(make_pod("a", annotations=demand, gpu="1"))
    new_node.give(pod, claims={"default/gpu": (id_,)}, **{"0000:11:00.0": 0})
    if accepted:
        await new_node.run(pod)
    else:
        with pytest.raises(RpcError, match=r"0000:11:00.0 has no NIC below its PCIe switch"):
            await new_node.run(pod)


@pytest.mark.parametrize("policy", list(Policy))
async def test_what_each_policy_does_with_a_device_on_a_full_numa_node(new_node, policy):
    """The device is on node 1, where CPUs are taken: only the strict policies reject the pod."""
    new_node.policy = policy
    await new_node.start()
    full, pod = make_pod("full", cpu="3"), make_pod("a", gpu="1")
    if policy is not Policy.NONE:
        new_node.give(full, **{"gpu-0": 1})
        full = replace(full, containers=(guaranteed("app", {"cpu": "3", "memory": "1Gi", "example.com/gpu": "1"}),))
    await new_node.run(full)
    new_node.give(pod, **{"gpu-1": 1})
    if policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE}:
        message = "Pod default/a is rejected: TopologyAffinityError; .*; device gpu-1 is on NUMA node 1"
        with pytest.raises(RpcError, match=message):
            await new_node.run(pod)
        assert "a" not in new_node.durable.host.ledger.pods
    else:
        await new_node.run(pod)
    new_node.check_exclusive()


async def test_a_rejected_pod_starts_once_there_is_room(node):
    first, second = make_pod("a", cpu="4"), make_pod("b", cpu="4")
    await node.run(first)
    with pytest.raises(RpcError, match=r"NUMA node 0: 1 CPU short .4 requested, 3 free") as rejected:
        await node.run(second)
    assert len(rejected.value.message) < 1000
    await node.plugin.remove_pod_sandbox(node.bind(second))  # as the runtime does after the error
    await node.stop(first)
    assert (await node.run(second))["app"].linux.resources.cpu.cpus == "4-7"


@pytest.mark.parametrize(
    ("version", "fails_sandbox"), [("1.7.24~ds1", True), ("2.1.9+unknown", False), ("2.2.1", False), ("2.3.4", True)]
)
async def test_the_call_that_fails_leaves_no_half_started_pod_on_each_runtime(new_node, version, fails_sandbox):
    new_node.version = version
    await new_node.start()
    sandbox = new_node.bind(make_pod("a", cpu="5"))
    if fails_sandbox:
        with pytest.raises(RpcError):
            await new_node.plugin.run_pod_sandbox(sandbox)
    else:
        await new_node.plugin.run_pod_sandbox(sandbox)
    with pytest.raises(RpcError, match="rejected"):
        await new_node.create(sandbox, "app")
    assert not new_node.plugin.containers


async def test_shared_pods_make_way_for_exclusive_ones_and_spread(node):
    for uid in "xy":
        await node.run(shared_pod(uid))
    assert sorted(cpus for cpus, _ in node.shown().values()) == ["0-3", "4-7"]
    await node.run(make_pod("a", cpu="4"))
    assert {sets[0] for id_, sets in node.shown().items() if id_ != "a-app"} == {"0-3"}
    node.check_exclusive()
    await node.stop(make_pod("a"))
    await node.synchronize()
    assert sorted(cpus for cpus, _ in node.shown().values()) == ["0-3", "4-7"]


async def test_a_restarted_plugin_knows_its_pods_and_changes_back_what_differs(node):
    first, gone = make_pod("a", cpu="2"), make_pod("b", cpu="2")
    await node.run(first)
    await node.run(gone)
    before = node.shown()["a-app"]
    del node.containers["b-app"], node.sandboxes["b"], node.pods["b"]  # while the plugin is away
    node.containers["a-app"].sets = ("0-7", "0-1")
    await node.start()
    assert node.shown() == {"a-app": before}
    assert list(node.durable.host.ledger.pods) == ["a"]


async def test_pods_that_started_without_the_plugin_are_decided_on(node):
    await node.run(make_pod("a", cpu="4"))
    for uid in "bc":
        node.run_without_plugin(make_pod(uid, cpu="3"))
    await node.start()
    assert node.shown()["b-app"] == ("1-3", "0")
    assert node.shown()["c-app"][0] == "0"  # shared: the reserved CPU
    assert list(node.plugin.unaligned) == ["c"]
    assert "rejected" in node.plugin.unaligned["c"][1]
    node.check_exclusive()


async def test_pods_that_started_without_the_plugin_are_looked_up_at_once_and_decided_on_in_order(
    new_node, monkeypatch
):
    """The API server may not have them: then each takes a second of the two that a runtime waits."""
    ended: list[str] = []

    async def find(pods, sandbox):
        assert not ended, "the lookups follow each other"
        for _ in range({"a": 3, "b": 2, "c": 1}[sandbox.uid]):
            await asyncio.sleep(0)
        ended.append(sandbox.uid)
        return await lookup(pods, sandbox)

    lookup = NodePods.find
    monkeypatch.setattr(NodePods, "find", find)
    for uid in "abc":
        new_node.run_without_plugin(make_pod(uid, cpu="3"))
    await new_node.start()
    assert ended == ["c", "b", "a"]
    assert list(new_node.durable.host.ledger.pods) == ["a", "b"]
    assert list(new_node.plugin.unaligned) == ["c"]


async def test_a_store_that_is_lost_or_corrupt_is_rebuilt_from_what_runs(node):
    await node.run(make_pod("a", cpu="4"))
    for path in node.directory.iterdir():
        path.write_bytes(b"garbage")
    await node.start()
    assert node.shown() == {"a-app": ("4-7", "1")}


async def test_a_store_that_is_removed_while_the_plugin_runs_is_written_anew(node):
    await node.run(make_pod("a", cpu="2"))
    node.store.path.unlink()
    await node.run(make_pod("b", cpu="2"))
    node.load()
    assert list(node.durable.host.ledger.pods) == ["a", "b"]


async def test_a_store_from_a_backup_is_completed_with_what_runs(node, capsys):
    await node.run(make_pod("a", cpu="2"))
    node.store.prepare_for_more()
    backup = node.store.path.read_bytes()
    await node.run(make_pod("b", cpu="2"))
    node.store.close()
    node.store.path.write_bytes(backup)
    await node.start()
    assert list(node.durable.host.ledger.pods) == ["a", "b"]
    assert "it lacks 1 acknowledged change" in capsys.readouterr().out


async def test_a_pod_whose_cpus_are_gone_after_a_reboot_is_decided_on_anew(node):
    await node.run(make_pod("a", cpu="2"))
    await node.run(make_pod("b", cpu="4"))
    assert node.shown()["b-app"][0] == "4-7"
    node.machine = parse("pack:1 numa:1 core:6 pu:1", memory=16 * GIB)
    await node.start()
    assert list(node.durable.host.ledger.pods) == ["a"]
    assert list(node.plugin.unaligned) == ["b"]
    node.check_exclusive()


async def test_a_decision_that_cannot_be_stored_does_not_count(node, monkeypatch):
    def fail(_state, _decisions):
        raise StoreError("the disk is full", where="state.db", advice="free some", kind=StoreProblem.UNWRITABLE)

    monkeypatch.setattr(node.store, "save", fail)
    with pytest.raises(RpcError, match=r"cannot be stored: .*the disk is full"):
        await node.run(make_pod("a"))
    assert not node.durable.host.ledger.pods


async def test_a_pod_keeps_its_cpus_while_its_container_restarts(node):
    pod = make_pod("a", cpu="4")
    await node.run(pod)
    await node.stop(pod, deleted=False)
    with pytest.raises(RpcError):
        await node.run(make_pod("b", cpu="4"))
    assert (await node.create(node.sandboxes["a"], "app")).linux.resources.cpu.cpus == "4-7"


@pytest.mark.parametrize("stage", [PodStage.TERMINATING, PodStage.ENDED])
async def test_a_pod_that_ends_gives_back_its_cpus_when_its_containers_have_stopped(node, stage):
    pod = make_pod("a", cpu="4")
    await node.run(pod)
    node.bind(pod, stage=stage)
    node.plugin.release_ended()
    assert "a" in node.durable.host.ledger.pods  # its container runs
    await node.stop(pod, deleted=False)
    assert "a" not in node.durable.host.ledger.pods


async def test_a_terminating_pod_that_still_runs_keeps_its_cpus_while_the_runtime_is_not_connected(node):
    """The list of the API server comes first then, and the containers are not known."""
    pod = make_pod("a", cpu="4")
    await node.run(pod)
    node.bind(pod, stage=PodStage.TERMINATING)
    node.load()
    node.plugin.release_ended()
    assert "a" in node.durable.host.ledger.pods
    await node.connect()
    await node.plugin.stop_container(node.sandboxes["a"], node.containers["a-app"].container)
    assert "a" not in node.durable.host.ledger.pods


async def test_a_pod_whose_container_restarts_while_the_runtime_is_not_connected_keeps_its_cpus(node):
    pod = make_pod("a", cpu="4")
    await node.run(pod)
    running = dict(node.containers)
    await node.stop(pod, deleted=False)
    await node.plugin.disconnected()
    node.containers |= running
    node.bind(pod, stage=PodStage.TERMINATING)
    node.plugin.release_ended()
    assert "a" in node.durable.host.ledger.pods
    await node.synchronize()
    assert node.shown()["a-app"] == ("4-7", "1")


async def test_a_pod_is_released_with_its_last_sandbox_even_without_the_api_server(node):
    pod = make_pod("a", cpu="4")
    await node.run(pod)
    again = wire.PodSandbox(id="s-2", uid="a", name="a", namespace="default")
    await node.stop(pod, deleted=False)
    await node.plugin.run_pod_sandbox(again)
    await node.remove(pod)
    assert "a" in node.durable.host.ledger.pods
    await node.plugin.remove_pod_sandbox(again)
    assert "a" not in node.durable.host.ledger.pods


async def test_a_pod_that_was_rejected_before_is_released_with_its_sandbox(node):
    """This runtime announces no removal of a rejected sandbox."""
    first, second = make_pod("a", cpu="4"), make_pod("b", cpu="4")
    await node.run(first)
    with pytest.raises(RpcError, match="rejected"):
        await node.run(second)
    await node.stop(first)
    again = wire.PodSandbox(id="s-2", uid="b", name="b", namespace="default")
    await node.plugin.run_pod_sandbox(again)
    await node.plugin.remove_pod_sandbox(again)
    assert "b" not in node.durable.host.ledger.pods


async def test_nothing_is_remembered_of_a_rejected_pod_that_was_deleted(node):
    before = copy.deepcopy(remembered(node.plugin))
    for _ in range(2):
        with pytest.raises(RpcError, match="rejected"):
            await node.run(make_pod("a", cpu="5"))
    del node.pods["a"]
    node.plugin.release_ended()
    assert remembered(node.plugin) == before


async def test_a_pod_with_a_new_sandbox_keeps_its_numa_node_when_the_old_one_is_removed(node):
    pods = [shared_pod(uid) for uid in "ab"]
    for pod in pods:
        await node.run(pod)
    before = node.shown()
    await node.stop(pods[1], deleted=False)
    again = wire.PodSandbox(id="s-2", uid="b", name="b", namespace="default")
    await node.plugin.run_pod_sandbox(again)
    await node.remove(pods[1])
    await node.stop(pods[0])
    await node.create(again, "app")
    assert node.shown() == {"b-app": before["b-app"]}


async def test_static_pods_that_the_api_server_does_not_have_run_in_the_shared_pool(node):
    sandbox = wire.PodSandbox(id="s", uid="etcd", name="etcd", namespace="kube-system")
    sandbox.annotations["kubernetes.io/config.source"] = "file"
    await node.plugin.run_pod_sandbox(sandbox)
    adjust = await node.create(sandbox, "etcd")
    assert adjust.linux.resources.cpu.cpus == "0-3"
    assert list(node.plugin.unaligned) == ["etcd"]


async def test_pods_may_choose_their_policy_by_annotation_where_that_is_allowed(new_node):
    new_node.policy, new_node.settings = Policy.SINGLE_NUMA_NODE, {"pod_policy_annotations": True}
    await new_node.start()
    pod = make_pod("a", {"topology.alignup.dev/policy": "best-effort"}, cpu="6")
    assert (await new_node.run(pod))["app"].linux.resources.cpu.cpus.count("-")
    with pytest.raises(RpcError, match="Unsupported value"):
        await new_node.run(make_pod("b", {"topology.alignup.dev/policy": "tight"}))


async def test_huge_pages_and_the_memory_policy_are_set(new_node):
    new_node.machine = parse(new_node.shape, memory=16 * GIB, hugepages=(HugePages(2 << 20, 512),))
    new_node.memory_policy = "MPOL_BIND"
    await new_node.start()
    linux = (await new_node.run(make_pod("a", None, **{"hugepages-2Mi": "64Mi"})))["app"].linux
    assert (linux.memory_policy.mode, linux.memory_policy.nodes) == (wire.MPOL_BIND, linux.resources.cpu.mems)
    (limit,) = linux.resources.hugepage_limits
    assert (limit.page_size, limit.limit) == ("2MB", 64 << 20)


async def test_the_kubelets_updates_do_not_undo_a_decision(node):
    await node.run(make_pod("a", cpu="4"))
    run = node.containers["a-app"]
    resources = wire.LinuxResources(cpu=wire.LinuxCPU(cpus="0-7"))
    (update,) = await node.plugin.update_container(run.pod, run.container, resources)
    assert update.linux.resources.cpu.cpus == "4-7"
    quota = wire.LinuxResources(cpu=wire.LinuxCPU(shares=wire.OptionalUInt64(value=4096)))
    assert list(await node.plugin.update_container(run.pod, run.container, quota)) == []


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["1", "2", "3", "4", "500m"])), max_size=20))
async def test_no_cpu_is_ever_in_two_exclusive_sets(anyio_backend, steps):
    with short_directory() as directory:
        node = DecidedNode(directory, policy=Policy.BEST_EFFORT)
        await node.start()
        for number, cpu in steps:
            uid = f"p{number}"
            if uid in node.sandboxes:
                await node.stop(make_pod(uid))
                await node.remove(make_pod(uid))
            else:
                try:
                    await node.run(make_pod(uid, cpu=cpu) if cpu != "500m" else shared_pod(uid))
                except RpcError:
                    await node.plugin.remove_pod_sandbox(wire.PodSandbox(id=f"s-{uid}", uid=uid))
            node.check_exclusive()
            ledger = node.durable.host.ledger
            assert set(ledger.pods) <= set(node.sandboxes)
        await node.synchronize()  # which also widens shared containers
        before = node.shown()
        await node.start()
        assert node.shown() == before


def test_a_hundred_pods_that_start_at_once_are_answered_before_the_deadline(new_node):
    """Over a real socket, with a durable store; each call has the time limit of containerd."""

    async def scenario(place):
        new_node.policy, new_node.shape = Policy.BEST_EFFORT, "pack:4 numa:1 core:32 pu:1"
        new_node.__post_init__()
        await new_node.start()
        pods = [make_pod(f"p{number}", cpu="1", memory="128Mi", gpu="1") for number in range(MANY)]
        for number, pod in enumerate(pods):
            new_node.give(pod, **{f"gpu-{number}": number % 4})
        sandboxes = [new_node.bind(pod) for pod in pods]
        runtime = ScriptedRuntime()
        async with runtime.listening(place / "nri.sock"):
            connection = PluginConnection(new_node.plugin, name="alignup", index="90", path=place / "nri.sock")
            serving = asyncio.ensure_future(connection.run())
            called = await next_plugin(runtime)
            await called.configure(version="2.3.4", nri="v0.12.2")
            await called.synchronize()

            async def start(sandbox):
                container = wire.Container(id=f"c-{sandbox.uid}", pod_sandbox_id=sandbox.id, name="app")
                notification = wire.NotificationRequest(pod=sandbox)
                await called.call("RunPodSandbox", notification, wire.Empty, timeout=DEADLINE)
                request = wire.CreateContainerRequest(pod=sandbox, container=container)
                response = await called.call("CreateContainer", request, wire.CreateContainerResponse, timeout=DEADLINE)
                return response.adjust.linux.resources.cpu

            cpus = await asyncio.gather(*map(start, sandboxes))
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        for number, cpu in enumerate(cpus):
            assert cpu.mems == str(number % 4)
        assert len({cpu.cpus for cpu in cpus}) == MANY
        assert new_node.lists < MANY

    with short_directory() as place:
        asyncio.run(scenario(place))


def _with_claim(pod):
    (container,) = pod.containers
    resources = replace(container.resources, claims=("gpu",))
    return replace(pod, containers=(replace(container, resources=resources),), claims=(PodClaim("gpu", claim="gpu"),))

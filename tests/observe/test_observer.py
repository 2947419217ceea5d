"""The observer's loop with a simulated kubelet, real files and the API server for tests."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from alignup import atomic_files
from alignup.align.claims.resource_claims import DeviceId
from alignup.align.errors import FileError, PluginError
from alignup.align.locality import PciPath
from alignup.align.machine import Device, PciDevice
from alignup.documents.host_state.schema import HEARTBEAT_SECONDS
from alignup.kubernetes.api import Access, ApiClient, Timing
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.kubelet_files import state_files
from alignup.observe import observer as observer_module
from alignup.observe.app import ObserverMetrics
from alignup.observe.kubelet_reader import ALLOCATABLE_SECONDS, KubeletPaths, KubeletReader
from alignup.observe.linux_calls import DirectoryWatch
from alignup.observe.observation import ForeignFilesError, join, with_addresses
from alignup.observe.observer import Observer, ObserverTiming, Publisher
from alignup.testing.api_server import ApiFault, ServedResource
from alignup.testing.simulated_kubelet import DEVICES
from tests.align.hosts import GPU, pod
from tests.observe.inotify_queue import fill_queue
from tests.observe.kubelets import ObservedKubelet, SimulatedPodResources

pytestmark = pytest.mark.anyio


@pytest.fixture
def kubelet(tmp_path):
    made = ObservedKubelet()
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "config.yaml").write_bytes(made.text)
    made.run(pod("a", gpu="1"))
    made.write(tmp_path)
    return made


@pytest.fixture
def answers(kubelet):
    return SimulatedPodResources(kubelet)


@pytest.fixture
def make_reader(kubelet, answers, tmp_path):
    """Make readers of the kubelet's directory, unless told otherwise."""

    def make(*, paths=(), machine=None, **options):
        discover = (lambda _root: kubelet.machine) if machine is None else lambda _root: machine
        paths = KubeletPaths(**{"directory": tmp_path, **dict(paths)})
        return KubeletReader(paths, pod_resources=answers, discover=discover, **options)

    return make


@pytest.fixture
def reader(kubelet, make_reader):
    return make_reader(pods=lambda: dict(kubelet.pods))


async def test_the_reader_finds_the_addresses_of_gpus(kubelet, make_reader, tmp_path):
    gpus = tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0"
    gpus.mkdir(parents=True)
    (gpus / "information").write_text("GPU UUID: GPU-a\nDevice Minor: 0\n")
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/bad.yaml").write_text("{")
    pci = (PciDevice("0000:3b:00.0", path=PciPath("pci0000:3a")), PciDevice("0000:86:00.0", uuid="GPU-b"))

    sources = await make_reader(paths={"host_root": tmp_path}, machine=replace(kubelet.machine, pci=pci)).read()

    assert sources.addresses == {"GPU-a": "0000:3b:00.0", "GPU-b": "0000:86:00.0"}
    assert any("etc/cdi/bad.yaml" in gap for gap in sources.gaps)
    devices = (Device("nvidia.com/gpu", "GPU-a"), Device("nvidia.com/gpu", "GPU-c"))
    assert [device.address for device in with_addresses(devices, sources)] == ["0000:3b:00.0", ""]


@pytest.fixture
def served(server):
    server.serve(ServedResource(kind="HostState", plural="hoststates", group="alignup.dev", version="v1alpha1"))
    return server


@pytest.fixture
def make(served, client, reader):
    """Make observers that write at any time, unless told otherwise."""

    def observer(**timing):
        publisher = Publisher(client, "n", uid="node-uid")
        metrics = ObserverMetrics("n")
        return Observer(
            reader, publisher, metrics, timing=ObserverTiming(**{"interval": 0.0, "settle": 60.0, **timing})
        )

    return observer


@asynccontextmanager
async def running(observer):
    task = asyncio.ensure_future(observer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def report(client):
    return host_state_reader().read(await client.get(HOST_STATES.at("n")))


def patches(server):
    return [
        request.path.rpartition("/")[0].rpartition("/")[2] for request in server.requests if request.method == "PATCH"
    ]


async def test_the_host_is_published_and_again_after_every_change(served, client, kubelet, make, tmp_path):
    async with running(make()):
        await served.wait_requests("PATCH", "noderesourcetopologies/n")
        first = await report(client)
        kubelet.run(pod("b", cpu="3"))
        kubelet.write(tmp_path)
        await served.wait_requests("PATCH", "noderesourcetopologies/n", 2)
    second = await report(client)

    assert (first.sequence, list(first.ledger.pods)) == (1, ["a"])
    assert list(second.ledger.pods) == ["a", "b"]
    assert second.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    (topology,) = served.objects("noderesourcetopologies")
    assert topology["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid"}
    ]
    applied = [request for request in served.requests if request.method == "PATCH"]
    assert {request.parameters["fieldManager"] for request in applied} == {"alignup-observer"}


@pytest.mark.parametrize("writes", [False, True], ids=["which changes no file", "while the kubelet writes files"])
async def test_a_device_plugin_that_stops_is_noticed_at_its_socket(served, client, answers, make, tmp_path, *, writes):
    socket = tmp_path / "device-plugins" / "gpu.sock"
    socket.touch()
    async with running(make(settle=0.01, period=3600.0)), asyncio.timeout(60):
        await served.wait_requests("PATCH", "hoststates/n")
        before = await report(client)
        without = replace(await answers.allocatable(), devices=())
        answers.allocatable = AsyncMock(return_value=without)
        if writes:
            answers.kubelet.write(tmp_path)
        socket.unlink()
        await served.wait_requests("PATCH", "hoststates/n", 2)

    after = await report(client)
    assert all(device.healthy for device in before.machine.devices)
    assert not any(device.healthy for device in after.machine.devices)


async def test_a_directory_that_is_replaced_is_watched_again(served, client, make, tmp_path):
    plugins = tmp_path / "device-plugins"
    async with running(make(settle=0.01, period=3600.0)), asyncio.timeout(60):
        await served.wait_requests("PATCH", "hoststates/n")
        plugins.rename(tmp_path / "old")
        plugins.mkdir()
        (plugins / "kubelet.sock").touch()
        await served.wait_requests("PATCH", "hoststates/n", 2)
        restarted = await report(client)
        (plugins / "kubelet.sock").unlink()
        await served.wait_requests("PATCH", "hoststates/n", 3)

    assert (bool(restarted.kubelet), (await report(client)).kubelet) == (True, "")


async def test_directories_that_have_appeared_are_watched_after_a_full_check(served, make, monkeypatch):
    """Their parents may not be watched."""
    refreshed = asyncio.Event()
    async with running(make(period=0.01)), asyncio.timeout(60):
        await served.wait_requests("PATCH", "hoststates/n")
        monkeypatch.setattr(DirectoryWatch, "refresh", lambda _watch: refreshed.set())
        await refreshed.wait()


async def test_a_host_that_changes_all_the_time_is_checked_in_full_too(served, make, reader, monkeypatch):
    now, refreshed, refresh = [0.0], list[float](), reader.refresh

    async def noted() -> None:
        refreshed.append(now[0])
        await refresh()

    monkeypatch.setattr(reader, "refresh", noted)
    observer = make(period=60.0, clock=lambda: now[0])
    async with running(observer), asyncio.timeout(60):
        await served.wait_requests("PATCH", "hoststates/n")
        for _ in range(4):
            now[0] += 25
            observer.notify()
            while observer.checked_at < now[0]:  # noqa: ASYNC110 - a condition without an event
                await asyncio.sleep(0)

    assert refreshed == [0.0, 75.0]


async def test_a_prepared_claim_is_noticed_at_the_file_of_claims(served, client, kubelet, make, tmp_path):
    """Claims are prepared after the admission, when the other files are written."""
    gpu = DeviceId("gpu.example.com", "n", "gpu-0")
    async with running(make()):
        await served.wait_requests("PATCH", "hoststates/n")
        kubelet.claims["a"] = {"default/gpu": (gpu,)}
        atomic_files.write(tmp_path / "dra_manager_state", b"{}")
        await served.wait_requests("PATCH", "hoststates/n", 2)

    claims = (await report(client)).ledger.claims
    assert claims is not None
    assert claims.claims_of("a") == {"default/gpu": (gpu,)}


async def test_an_unchanged_host_is_written_again_after_five_minutes(served, reader):
    now = [0.0]
    timing = Timing(clock=lambda: now[0], time_of_day=lambda: 1_800_000_000 + now[0])
    seen = []
    async with ApiClient(Access(server=served.url), timing=timing) as client:
        publisher = Publisher(client, "n", uid="")
        observer = Observer(reader, publisher, ObserverMetrics("n"), timing=ObserverTiming(interval=0.0))
        for seconds in (0.0, HEARTBEAT_SECONDS - 1, 1.0):
            now[0] += seconds
            await observer.check_once()
            (state,) = served.objects("hoststates")
            seen.append((len(patches(served)), state["generation"], state["observedAt"]))

    first, second = "2027-01-15T08:00:00Z", "2027-01-15T08:05:00Z"
    assert seen == [(2, 1, first), (2, 1, first), (4, 1, second)]


@pytest.mark.parametrize("plural", ["hoststates", "noderesourcetopologies"])
async def test_a_deleted_object_comes_back_complete_within_five_minutes(served, reader, plural):
    now = [0.0]
    timing = Timing(clock=lambda: now[0], time_of_day=lambda: 1_800_000_000)
    async with ApiClient(Access(server=served.url), timing=timing) as client:
        publisher = Publisher(client, "n", uid="")
        observer = Observer(reader, publisher, ObserverMetrics("n"), timing=ObserverTiming(interval=0.0))
        await observer.check_once()
        (before,) = served.objects(plural)
        served.remove(plural, "n", namespace="")
        now[0] += HEARTBEAT_SECONDS

        assert await observer.check_once() == ()

    (after,) = served.objects(plural)
    assert {**after, "metadata": {}} == {**before, "metadata": {}}


async def test_writes_are_an_interval_apart_and_carry_the_last_state(served, client, kubelet, make, tmp_path):
    now, pauses = [100.0], []

    async def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds
        if len(pauses) == 1:  # another change, while the observer waits
            kubelet.run(pod("c", cpu="1"))
            kubelet.write(tmp_path)
            observer.notify()

    observer = make(interval=1.0, clock=lambda: now[0], sleep=sleep)
    await observer.check_once()
    now[0] += 0.25
    kubelet.run(pod("b", cpu="3"))
    kubelet.write(tmp_path)
    await observer.check_once()

    assert pauses == [0.75]
    assert list((await report(client)).ledger.pods) == ["a", "b", "c"]
    assert patches(served).count("hoststates") == 2


async def test_the_state_between_two_writes_is_never_published(served, client, kubelet, make, tmp_path):
    async with running(make()):
        await served.wait_requests("PATCH", "noderesourcetopologies/n")
        before = kubelet.files.cpu
        kubelet.run(pod("b", cpu="3"))
        taken = replace(before, default=kubelet.files.cpu.default)
        atomic_files.write(
            tmp_path / state_files.CPU_FILE, state_files.dump_cpu_state(taken, gates=kubelet.host.settings.gates)
        )
        kubelet.write(tmp_path)
        await served.wait_requests("PATCH", "noderesourcetopologies/n", 2)
    sources = await report(client)

    assert sources.ledger.alignment_key() == kubelet.host.ledger.alignment_key()
    assert sources.sequence == 2


async def test_a_pod_that_is_being_admitted_is_waited_for(client, kubelet, make, tmp_path):
    """The kubelet has written what the first container gets, and waits for the device plugin of the second."""
    observer = make(settle=0.0, admission=60.0)
    await observer.check_once()
    kubelet.run(pod("b", cpu="3"))
    state_files.write_state_files(tmp_path, kubelet.files, gates=kubelet.host.settings.gates)
    checking = asyncio.ensure_future(observer.check_once())
    done, _ = await asyncio.wait([checking], timeout=0.1)
    published = list((await report(client)).ledger.pods)
    kubelet.write(tmp_path)
    observer.notify()
    await checking

    assert (done, published) == (set(), ["a"])
    assert list((await report(client)).ledger.pods) == ["a", "b"]


async def test_a_state_that_does_not_settle_is_published_with_its_problem(served, kubelet, make, tmp_path):
    lost = replace(kubelet.files.cpu, default=kubelet.files.cpu.default & ~(1 << 3))
    atomic_files.write(
        tmp_path / state_files.CPU_FILE, state_files.dump_cpu_state(lost, gates=kubelet.host.settings.gates)
    )

    await make(settle=0.0).check_once()

    (state,) = served.objects("hoststates")
    assert state["ledger"]["lostCpus"] == "3"
    assert "a kubelet would not start with it" in state["problems"][0]


async def test_a_damaged_file_makes_the_ledger_unknown(served, make, tmp_path):
    (tmp_path / state_files.CPU_FILE).write_bytes(b"{")

    await make(settle=0.0).check_once()

    (state,) = served.objects("hoststates")
    assert "ledger" not in state
    assert state["problems"][0].startswith("could not restore state from checkpoint: unexpected end of JSON input")
    assert served.objects("noderesourcetopologies") == []


async def test_a_problem_that_comes_back_is_logged_again(make, tmp_path):
    file = tmp_path / state_files.CPU_FILE
    good, observer = file.read_bytes(), make(settle=0.0)
    with capture_logs() as lines:
        for text in (good, b"{", good, b"{"):
            atomic_files.write(file, text)
            await observer.check_once()

    assert len([line for line in lines if line["event"] == "problem"]) == 2


async def test_a_changed_configuration_is_read_when_the_kubelet_starts_with_it(served, client, kubelet, make, tmp_path):
    async with running(make()):
        await served.wait_requests("PATCH", "noderesourcetopologies/n")
        changed = ObservedKubelet(topologyManagerPolicy="restricted", maxPods=20)
        (tmp_path / "config.yaml").write_bytes(changed.text)
        (tmp_path / "device-plugins" / "kubelet.sock").touch()
        await served.wait_requests("PATCH", "noderesourcetopologies/n", 2)
    sources = await report(client)

    assert sources.settings == replace(changed.host.settings, kubelet_faults=True)
    state = await client.get(HOST_STATES.at("n"))
    assert state.machine_generation > 1


async def test_a_configuration_that_cannot_be_read_makes_the_host_unknown_until_it_can(
    served, kubelet, make_reader, make, tmp_path
):
    """The kubelet restarts with another policy, and has no file of its configuration."""
    changed = ObservedKubelet(topologyManagerPolicy="restricted")
    configz = AsyncMock(return_value=b'{"kubeletconfig":%s}' % kubelet.text)
    observer = make(settle=0.01, retry=0.01, period=3600.0)
    observer.reader = make_reader(configz=configz, pods=lambda: dict(kubelet.pods))
    (tmp_path / "config.yaml").unlink()
    with capture_logs() as lines:
        async with running(observer), asyncio.timeout(60):
            await served.wait_requests("PATCH", "noderesourcetopologies/n")
            configz.side_effect = PluginError("connection refused")
            (tmp_path / "device-plugins" / "kubelet.sock").touch()
            await served.wait_requests("PATCH", "hoststates/n", 2)
            (unknown,) = served.objects("hoststates")
            configz.side_effect, configz.return_value = None, b'{"kubeletconfig":%s}' % changed.text
            await served.wait_requests("PATCH", "hoststates/n", 3)

    (state,) = served.objects("hoststates")
    reason = f"{tmp_path}/config.yaml: no such file; the live configuration is unknown: connection refused"
    assert ("ledger" in unknown, unknown["problems"]) == (False, [reason])
    assert ("ledger" in state, state["configuration"]["topologyManagerPolicy"]) == (True, "restricted")
    assert [line["problem"] for line in lines if line["event"] == "problem"] == [reason]


async def test_after_lost_events_everything_is_read_again(served, make, tmp_path):
    """The kernel drops events when its queue is full; the configuration has changed meanwhile."""
    async with running(make(period=3600.0)), asyncio.timeout(60):
        await served.wait_requests("PATCH", "noderesourcetopologies/n")
        changed = ObservedKubelet(topologyManagerPolicy="restricted")
        (tmp_path / "new").write_bytes(changed.text)
        fill_queue(tmp_path)
        (tmp_path / "new").rename(tmp_path / "config.yaml")
        await served.wait_requests("PATCH", "noderesourcetopologies/n", 2)

    (state,) = served.objects("hoststates")
    assert state["configuration"]["topologyManagerPolicy"] == "restricted"


async def test_a_restarted_kubelet_is_told_apart(client, make, tmp_path):
    observer = make()
    await observer.check_once()
    (tmp_path / "device-plugins" / "kubelet.sock").touch()
    await observer.check_once()

    assert (await report(client)).kubelet
    assert (await report(client)).sequence == 2


async def test_generations_continue_after_a_restart_of_the_observer(client, kubelet, make, tmp_path):
    await make().check_once()
    kubelet.run(pod("b", cpu="3"))
    kubelet.write(tmp_path)
    second = make()
    await second.publisher.start()
    await second.check_once()

    assert (await report(client)).sequence == 2


async def test_a_failed_write_is_a_problem_until_it_succeeds(served, client, make):
    observer = make()
    served.inject(ApiFault(status=403), verb="patch")
    assert "hoststates" in (await observer.check_once())[0]

    assert await observer.check_once() == ()
    assert (await report(client)).sequence == 1


async def test_a_write_that_keeps_failing_is_tried_at_one_rate_and_logged_once(served, make):
    """Each of the changes during that time fails as well, and must not add a timer of its own."""
    observer = make(retry=60.0)
    served.inject(ApiFault(status=403, times=None), verb="patch")
    with capture_logs() as lines:
        for _ in range(3):
            await observer.check_once()

    timers = vars(asyncio.get_running_loop())["_scheduled"]
    assert len([timer for timer in timers if "Observer.notify" in repr(timer) and not timer.cancelled()]) == 1
    assert len([line for line in lines if line["event"] == "problem"]) == 1


async def test_a_missing_custom_resource_definition_is_named(server, client, reader):
    publisher = Publisher(client, "n", uid="")
    observer = Observer(reader, publisher, ObserverMetrics("n"), timing=ObserverTiming(interval=0.0))

    assert await observer.check_once() == (
        "the API server does not have hoststates.alignup.dev; apply the CustomResourceDefinition",
    )
    assert len(server.objects("noderesourcetopologies")) == 1
    server.serve(ServedResource(kind="HostState", plural="hoststates", group="alignup.dev", version="v1alpha1"))
    assert await observer.check_once() == ()
    assert (await report(client)).sequence == 1


async def test_without_podresources_the_gap_is_published(served, answers, make):
    answers.fails = True
    await make().check_once()

    (state,) = served.objects("hoststates")
    assert "PodResources does not answer: no such socket" in state["problems"]


async def test_files_of_another_machine_are_refused(kubelet, make):
    kubelet.machine = ObservedKubelet(shape="pack:2 numa:1 core:2 pu:1").machine

    with pytest.raises(ForeignFilesError):
        await make().check_machine()


async def test_nothing_is_written_below_the_directory_of_the_kubelet(served, make, tmp_path):
    def tree():
        return {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.rglob("*"))}

    before = tree()
    async with running(make()):
        await served.wait_requests("PATCH", "noderesourcetopologies/n")

    assert tree() == before


async def test_files_that_change_while_they_are_read_are_read_again(kubelet, answers, reader, tmp_path):
    listed = answers.list

    async def list_and_write():
        answers.list = listed
        kubelet.run(pod("b", cpu="3"))
        kubelet.write(tmp_path)
        return await listed()

    answers.list = list_and_write
    sources = await reader.read()

    assert sources.files.cpu == kubelet.files.cpu
    assert len(sources.listed) == 2


async def test_the_live_configuration_counts_and_the_file_fills_in(answers, make_reader, tmp_path):
    configz = AsyncMock(return_value=b'{"kubeletconfig":{"maxPods":7}}')
    reader = make_reader(configz=configz, pods=dict)
    assert (await reader.read()).configuration.max_pods == 7
    answers.fails = True
    configz.side_effect = PluginError("forbidden")
    await reader.refresh()
    sources = await reader.read()

    assert sources.configuration.max_pods == 110
    file = tmp_path / "config.yaml"
    assert sources.gaps[0] == (
        f"the live configuration is unknown: forbidden; using {file}, without the flags of the kubelet"
    )


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ({"MemoryManager": True}, ("1.35", False)),
        ({"TopologyManagerPolicyOptions": False}, ("1.35", False)),
        ({"PodLevelResourceManagers": True}, ("1.37", False)),
        ({"MemoryManager": True, "PodLevelResourceManagers": True}, ("1.37", True)),
    ],
)
async def test_the_live_configuration_is_read_as_by_a_release_that_accepts_it(make_reader, gates, expected):
    configz = AsyncMock(return_value=json.dumps({"kubeletconfig": {"featureGates": gates}}).encode())
    sources = await make_reader(configz=configz, pods=dict).read()

    ignored = any("ignored featureGates" in gap for gap in sources.gaps)
    assert (sources.configuration.release.version, ignored) == expected


async def test_drop_in_files_are_part_of_the_configuration(make_reader, tmp_path):
    drop_ins = tmp_path / "config.d"
    drop_ins.mkdir()
    head = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    (drop_ins / "10.conf").write_bytes(head + b"maxPods: 20\n")
    (drop_ins / "20.conf").write_bytes(head + b"maxPods: 30\n")
    (drop_ins / "30.txt").write_bytes(head + b"maxPods: 40\n")

    sources = await make_reader(paths={"config_dir": drop_ins}).read()

    assert sources.configuration.max_pods == 30
    assert sources.gaps[-1] == "the pods of the API server are unknown"


async def test_a_missing_directory_of_drop_in_files_is_an_error_with_its_path(make_reader, tmp_path):
    with pytest.raises(FileError, match=r"config\.d: No such file or directory"):
        await make_reader(paths={"config_dir": tmp_path / "config.d"}).read()


async def test_a_kubelet_without_files_is_observed_as_far_as_it_answers(kubelet, make_reader, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_bytes(kubelet.text)

    sources = await make_reader(paths={"directory": tmp_path / "empty"}).read()

    assert sources.files == state_files.KubeletFiles()
    assert sources.allocated is None


async def test_only_files_that_changed_are_decoded_again(kubelet, reader, tmp_path):
    before = await reader.read()
    again = await reader.read()
    kubelet.run(pod("b", cpu="500m"))
    kubelet.write(tmp_path)
    after = await reader.read()
    await reader.refresh()
    full = await reader.read()

    assert again.files.cpu is before.files.cpu
    assert again.allocated is before.allocated
    assert after.files.cpu is before.files.cpu, "it holds no exclusive CPUs"
    assert set(after.allocated or ()) - set(before.allocated or ()) == {"b"}
    assert full.files.cpu is not before.files.cpu
    assert full.files.cpu == before.files.cpu


async def test_what_can_be_allocated_is_read_again_after_a_while_or_with_other_devices(
    kubelet, answers, make_reader, tmp_path
):
    now = [0.0]
    answers.allocatable = AsyncMock(return_value=await answers.allocatable())
    reader = make_reader(clock=lambda: now[0])

    async def asked(*, admitted="", seconds=0.0):
        answers.allocatable.reset_mock()
        now[0] += seconds
        if admitted:
            kubelet.run(pod(admitted, cpu="1"))
            kubelet.write(tmp_path)
        assert (await reader.read()).allocatable == answers.allocatable.return_value
        return answers.allocatable.await_count

    assert await asked() == 1
    assert await asked(admitted="b", seconds=ALLOCATABLE_SECONDS - 1) == 0
    assert await asked(seconds=1) == 1
    await reader.refresh()
    assert await asked() == 1
    reader.forget_allocatable()
    assert await asked() == 1
    kubelet.host.update_devices(GPU, DEVICES[:1])  # of which PodResources does not know yet
    assert [await asked(admitted="c"), await asked()] == [1, 1]


async def test_what_is_forgotten_while_it_is_read_is_read_again(answers, reader):
    async def read(read=answers.read):
        answer = await read()
        reader.forget_allocatable()
        return answer

    answers.read = AsyncMock(side_effect=read)
    for _ in range(2):
        await reader.read()

    assert answers.read.await_count == 2


async def test_a_host_whose_sources_have_not_changed_is_neither_joined_nor_written_again(served, make, monkeypatch):
    joins = []

    def counted(sources, **options):
        joins.append(sources)
        return join(sources, **options)

    monkeypatch.setattr(observer_module, "join", counted)
    observer = make()

    await observer.check_once()
    first = observer.publisher.sizes.copy()
    await observer.check_once()

    assert (len(joins), observer.publisher.sizes) == (1, first)
    assert patches(served) == ["hoststates", "noderesourcetopologies"]

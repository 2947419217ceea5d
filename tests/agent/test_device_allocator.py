"""Device plugins on real sockets, good and bad, in one process and as processes."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alignup.agent.pending_admission import PendingAdmission
from alignup.agent.recovery import RecoveryOptions, recover
from alignup.agent.state import WaitingPods
from alignup.agent.transaction import Transaction
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import FileError, PodError
from alignup.align.host import Host, Settings
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.endpoint import PluginTimeouts, plugin_error
from alignup.machines import load_machine
from alignup.store.state_store import StateStore
from alignup.testing import Fault, Preference
from alignup.web.responses import NotReadyError
from alignup.wire import device_plugin_pb2 as plugin_wire
from alignup.wire import pod_resources_pb2 as wire
from tests.agent.agents import run_until_exit, running
from tests.agent.load import kill_plugins_too
from tests.agent.plugin_rig import GPUS, PATIENT, start_rig, wait_for_devices
from tests.agent.states import empty_state, quiet_history, stored
from tests.align.hosts import GPU, NIC, host, pod
from tests.deadlines import until, wait_for
from tests.effort import SEED, did, rounds
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.kubernetes.plugins.capacity import capacity_of
from tests.short_paths import short_directory
from tests.testing.processes import plugin_process

__all__ = ["anyio_backend", "one_loop"]

pytestmark = pytest.mark.anyio

FPGA: Any = {"example.com/fpga": "1"}  #: a resource without a plugin
BAD = {
    "error": Fault(error="out of order"),
    "garbage": Fault(garbage=True),
    "hang": Fault(hang=True),
    "late": Fault(delay=600),
}


@pytest.fixture
def directory():
    """A directory with a short path, because sockets are in it."""
    with short_directory() as place:
        yield place


async def test_a_pod_gets_its_plugins_preferred_devices_and_grants(directory):
    async with start_rig(directory) as rig, rig.plugin(preference=Preference.HIGHEST) as plugin:
        admission = await rig.admit(pod("a", gpu="1"))

        (request,) = plugin.requests("GetPreferredAllocation")
        (allocated,) = plugin.requests("Allocate")
        grant = admission.pod_view.grants["app"][GPU]
        assert list(request.container_requests[0].available_deviceIDs) == ["gpu-0", "gpu-1"]
        assert list(allocated.container_requests[0].devices_ids) == ["gpu-1"]
        assert rig.devices("a") == {GPU: ("gpu-1",)}
        assert grant["envs"] == {"GPU_DEVICES": "gpu-1"}
        assert grant["devices"][0]["container_path"] == "/dev/gpu/gpu-1"
        assert (rig.queue.state.pending, rig.free()) == ({}, 3)


async def test_near_devices_are_chosen_without_asking_the_plugin(directory):
    machine = load_machine(Path(__file__).parents[2] / "examples" / "locality" / "machine.yaml")
    idle = Host(machine.with_reported(()), Settings(near_devices=True))
    now = replace(empty_state(), host=idle, idle_ledger=idle.ledger)
    async with start_rig(directory, now=now) as rig, rig.plugin("4@0,4@1", preference=Preference.HIGHEST) as plugin:
        await rig.admit(pod("a", gpu="2"))
        assert rig.devices("a") == {GPU: ("gpu-0", "gpu-3")}
        assert plugin.requests("GetPreferredAllocation") == ()

        demand = {DEVICES_ANNOTATION: "nvlink"}
        rejected = await rig.admit(replace(pod("b", gpu="3"), annotations=demand))
        assert rejected.decision.rejection.reason == "DeviceLocalityError"
        with pytest.raises(PodError, match=r"no container requests example.com/other"):
            await rig.admit(replace(pod("c", gpu="1"), annotations={DEVICES_ANNOTATION: "spread=example.com/other"}))


async def test_a_pod_without_plugin_devices_does_not_call_plugins(directory):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        admission = await rig.admit(pod("a", nic="1"))

        assert admission.decision.admitted
        assert rig.devices("a") == {NIC: ("nic-0",)}
        assert plugin.requests("Allocate") == ()


async def test_a_dry_run_asks_for_preferences_and_allocates_nothing(directory):
    async with start_rig(directory) as rig, rig.plugin(preference=Preference.HIGHEST) as plugin:
        admission = await rig.allocator.dry_run(pod("a", gpu="1"))

        assert admission.decision.placements[0].as_text()["device"] == {GPU: "gpu-1"}
        assert (plugin.requests("Allocate"), rig.queue.state.pod_views(), rig.free()) == ((), (), 4)


@pytest.mark.parametrize("resources", [{"cpu": "1"}, {"gpu": "1"}], ids=["that runs", "whose devices are prepared"])
async def test_a_dry_run_of_another_pod_with_a_known_uid_is_an_error(directory, resources):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.inject("Allocate", Fault(hang=True))
        request = asyncio.create_task(rig.admit(pod("a", **resources)))
        await until(lambda: "a" in rig.queue.state.host.ledger.pods)

        with pytest.raises(PodError, match="has other requests; release that pod first"):
            await rig.allocator.dry_run(pod("a", cpu="1000"))
        same = await rig.allocator.dry_run(pod("a", **resources))
        await rig.queue.run(Transaction.release, "a")
        request.cancel()

        assert same.decision.admitted


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
@pytest.mark.parametrize("fault", BAD)
async def test_an_admission_is_undone_if_a_plugin_fails_or_times_out(directory, method, fault):
    short = PluginTimeouts(allocate=0.1) if method == "Allocate" else PluginTimeouts(preferred=0.1)
    timeouts = short if fault in {"hang", "late"} else PATIENT
    async with start_rig(directory, timeouts=timeouts) as rig, rig.plugin(preference=Preference.LOWEST) as plugin:
        plugin.inject(method, BAD[fault])
        before = rig.queue.state.host.ledger.by_provider()

        admission = await rig.admit(pod("a", gpu="1"))

        assert admission.pod_view is None
        assert admission.decision.rejection.reason == "UnexpectedAdmissionError"
        assert admission.decision.rejection.message.startswith("Allocate failed due to ")
        assert admission.decision.rejection.message.endswith(", which is unexpected")
        assert rig.queue.state.host.ledger.by_provider() == before
        plugin.inject(method, Fault())
        async with asyncio.timeout(60):
            while not (await rig.admit(pod("a", gpu="1"))).decision.admitted:
                assert timeouts is short  # on a busy machine, good plugins exceed it too


async def test_messages_are_the_kubelets(directory):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.inject("Allocate", Fault(error="out of order"))

        rejection = (await rig.admit(pod("a", gpu="1"))).decision.rejection

        text = "rpc error: code = Unknown desc = out of order"
        assert rejection.message == f"Allocate failed due to {text}, which is unexpected"
        assert (rejection.container, rejection.provider) == ("app", "device")


async def test_if_one_of_two_plugins_fails_nothing_is_kept(directory):
    async with start_rig(directory) as rig, rig.plugin() as gpus, rig.plugin("1@0,1@1", resource=NIC) as nics:
        nics.inject("Allocate", Fault(error="no", done=True))
        nics.pause()
        request = asyncio.create_task(rig.admit(pod("a", gpu="1", nic="1")))
        await gpus.wait_called("Allocate")
        nics.resume()
        rejected = await request

        assert rejected.pod_view is None
        assert (rig.free(GPU), rig.free(NIC)) == (4, 2)
        nics.inject("Allocate", Fault())
        admitted = await rig.admit(pod("a", gpu="1", nic="1"))
        assert admitted.pod_view.grants["app"].keys() == {GPU, NIC}
        assert len(gpus.requests("Allocate")) == 2


async def test_a_hanging_plugin_does_not_delay_other_pods(directory):
    async with start_rig(directory) as rig, rig.plugin() as gpus, rig.plugin("1@0,1@1", resource=NIC):
        gpus.inject("Allocate", Fault(hang=True))
        hanging = asyncio.create_task(rig.admit(pod("a", cpu="1", gpu="1")))
        await gpus.wait_called("Allocate")

        async with asyncio.timeout(60):
            plain = await rig.admit(pod("b", cpu="1"))
            other = await rig.admit(pod("c", cpu="1", nic="1"))
            gone = await rig.queue.run(Transaction.release, "b")

        assert plain.decision.admitted
        assert other.decision.admitted
        assert gone is not None
        assert not hanging.done()
        assert rig.free(GPU) == 3
        assert rig.queue.state.settled_host().ledger.pods.keys() == {"c"}
        await rig.allocator.close()
        with pytest.raises(NotReadyError, match="is stopping"):
            await hanging


async def test_devices_of_a_pending_pod_are_not_allocated_again(directory):
    async with start_rig(directory) as rig, rig.plugin("1@0") as plugin:
        plugin.pause()
        first = asyncio.create_task(rig.admit(pod("a", cpu="1", gpu="1")))
        await plugin.wait_called("Allocate")

        second = await rig.admit(pod("b", cpu="1", gpu="1"))
        plugin.resume()

        assert second.pod_view is None
        assert (await first).decision.admitted


async def test_submitting_a_pending_pod_again_waits_for_it(directory):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.pause()
        first = asyncio.create_task(rig.admit(pod("a", gpu="1")))
        await plugin.wait_called("Allocate")
        second = asyncio.create_task(rig.admit(pod("a", gpu="1")))
        await asyncio.sleep(0)  # the second request starts to wait
        plugin.resume()

        both = await asyncio.gather(first, second)

        assert both[0] == both[1]
        assert len(plugin.requests("Allocate")) == 1


async def test_a_pending_pod_can_be_released(directory):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.pause()
        request = asyncio.create_task(rig.admit(pod("a", gpu="1")))
        await plugin.wait_called("Allocate")

        gone: Any = await rig.queue.run(Transaction.release, "a")
        plugin.resume()
        admission = await request

        assert gone.pod.uid == "a"
        assert (admission.pod_view, admission.decision.rejection.reason) == (None, "Released")
        assert (rig.free(), rig.queue.state.pending) == (4, {})


async def test_a_client_that_disconnects_while_its_pod_is_decided_on_leaves_no_device_without_owner(directory):
    deciding, decide = threading.Event(), threading.Event()

    def stopwatch():
        deciding.set()
        assert decide.wait(60)
        return 0.0

    async with start_rig(directory, stopwatch=stopwatch) as rig, rig.plugin():
        client = asyncio.create_task(rig.admit(pod("a", gpu="1")))
        assert await asyncio.to_thread(deciding.wait, 60)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        decide.set()

        await until(lambda: rig.status("a") == "admitted")
        await rig.queue.run(Transaction.release, "a")
        assert (rig.free(), rig.queue.state.pending, rig.queue.state.host.ledger.pods) == (4, {}, {})


async def test_a_pod_whose_client_disconnects_while_the_agent_stops_is_dropped(directory):
    errors: list = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with start_rig(directory) as rig, rig.plugin():
        pending = await rig.queue.run(Transaction.admit, pod("a", gpu="1"))
        assert isinstance(pending, PendingAdmission)
        await rig.allocator.close()
        rig.queue.start_pending([pending])
        await asyncio.sleep(0)  # it starts in the next turn of the event loop

    asyncio.get_running_loop().set_exception_handler(None)
    assert errors == []


@pytest.mark.parametrize(("fault", "status"), [(Fault(), "admitted"), (Fault(error="no", done=True), "")])
async def test_a_client_that_disconnects_during_allocate_leaves_no_device_without_owner(directory, fault, status):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.inject("Allocate", fault)
        plugin.pause()
        client = asyncio.create_task(rig.admit(pod("a", gpu="1")))
        await plugin.wait_called("Allocate")
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        plugin.resume()

        await until(lambda: not rig.queue.state.pending)
        assert (rig.status("a"), rig.free()) == (status, 3 if status else 4)
        await rig.queue.run(Transaction.release, "a")
        assert (rig.free(), rig.queue.state.host.ledger.pods) == (4, {})


async def test_devices_are_allocated_container_by_container_in_order(directory):
    two = pod("a", cpu="1", gpu="1")
    app = two.containers[0]
    both = type(two)(
        name="a",
        uid="a",
        init=(type(app)("first", app.resources),),
        containers=(app, type(app)("second", app.resources)),
    )
    async with start_rig(directory) as rig, rig.plugin(preference=Preference.HIGHEST) as plugin:
        admission = await rig.admit(both)

        request = [list(call.container_requests[0].devices_ids) for call in plugin.requests("Allocate")]
        assert request == [["gpu-1"], ["gpu-1"], ["gpu-0"]]
        assert list(admission.pod_view.grants) == ["first", "app", "second"]


async def test_pods_wait_for_a_late_plugin(directory):
    now = empty_state(wait_enabled=True)
    async with start_rig(directory, now=now) as rig:
        waits = await rig.admit(pod("a", cpu="1", **FPGA))
        too_much = await rig.admit(pod("b", cpu="9", **FPGA))
        reason = waits.decision.rejection.reason

        async with rig.plugin("1@0", resource="example.com/fpga"):
            await until(lambda: rig.status("a") == "admitted")

            assert (str(waits.pod_view.status), reason) == ("waiting", "OutOfexample.com/fpga")
            assert too_much.pod_view is None
            assert rig.devices("a") == {"example.com/fpga": ("fpga-0",)}
            assert "example.com/fpga" in rig.pod_view("a").grants["app"]


async def test_a_pod_that_waits_for_a_plugin_blocks_no_other_pod(directory):
    async with start_rig(directory, now=empty_state(wait_enabled=True, max_overtakes=1)) as rig:
        await rig.admit(pod("late", cpu="1", **FPGA))

        others = [await rig.admit(pod(f"p{number}", cpu="1")) for number in range(3)]

        assert all(result.decision.admitted for result in others)


async def test_a_waiting_pod_is_retried_after_its_plugin_failed(directory):
    async with start_rig(directory, now=empty_state(wait_enabled=True)) as rig, rig.plugin() as plugin:
        plugin.inject("Allocate", Fault(error="not yet"))

        rejected = await rig.admit(pod("a", gpu="1"))
        plugin.inject("Allocate", Fault())
        await until(lambda: rig.status("a") == "admitted")

        assert str(rejected.pod_view.status) == "waiting"
        assert "not yet" in rejected.decision.rejection.message
        assert rig.queue.state.backing_off == frozenset()
        assert rig.pod_view("a").grants["app"].keys() == {GPU}


async def test_a_release_admits_a_pod_that_waits_for_the_devices(directory):
    async with (
        start_rig(directory, now=empty_state(wait_enabled=True)) as rig,
        rig.plugin("1@0", preference=Preference.LOWEST),
    ):
        await rig.admit(pod("a", cpu="1", gpu="1"))
        waits = await rig.admit(pod("b", cpu="1", gpu="1"))

        await rig.queue.run(Transaction.release, "a")
        await until(lambda: rig.status("b") == "admitted")

        assert str(waits.pod_view.status) == "waiting"
        assert rig.pod_view("b").grants["app"][GPU]["envs"] == {"GPU_DEVICES": "gpu-0"}


async def test_pods_from_manifests_are_listed_at_once_and_wait_for_their_plugins(directory):
    async with start_rig(directory) as rig, rig.plugin() as plugin:
        plugin.pause()

        answers: Any = await rig.queue.run(
            Transaction.replace_pods, [], [(pod("a", gpu="1"), "a.yaml"), (pod("b"), "b.yaml")]
        )
        with_devices, plain = answers
        waiting = rig.status("a")
        plugin.resume()
        await until(lambda: rig.status("a") == "admitted")

        assert with_devices.decision.rejection.reason == "DevicesArePrepared"
        assert (waiting, plain.decision.admitted) == ("waiting", True)
        assert rig.pod_view("a").source == "a.yaml"


async def test_a_plugin_that_dies_before_allocate_leaves_nothing(directory):
    async with start_rig(directory) as rig:
        async with rig.plugin() as plugin:
            plugin.inject("Allocate", Fault(hang=True))
            request = asyncio.create_task(rig.admit(pod("a", gpu="1")))
            await plugin.wait_called("Allocate")
        admission = await request
        await until(lambda: rig.healthy() == 0)

        assert admission.decision.rejection.reason == "UnexpectedAdmissionError"
        assert rig.queue.state.host.ledger.pods == {}
        async with rig.plugin():
            assert rig.free() == 4


async def test_pods_keep_the_devices_of_a_stopped_plugin(directory):
    time = [0.0]
    async with start_rig(directory, clock=lambda: time[0]) as rig:
        async with rig.plugin():
            await rig.admit(pod("a", gpu="1"))
        await until(lambda: rig.healthy() == 0)
        stopped = await rig.admit(pod("b", gpu="1"))
        time[0] = PATIENT.reconnect + 1
        deleted = capacity_of(rig.manager).deleted
        await rig.manager.settled()
        given_up = await rig.admit(pod("c", gpu="1"))

        assert stopped.pod_view is None
        assert deleted == (GPU,)
        assert given_up.pod_view is None
        assert rig.devices("a") == {GPU: ("gpu-0",)}
        async with rig.plugin():
            assert rig.free() == 3


@pytest.mark.soak
async def test_a_flapping_plugin_neither_loses_nor_duplicates_devices(directory):
    flaps = rounds(12, soak=300)
    async with start_rig(directory, now=empty_state(wait_enabled=True, capacity=flaps)) as rig:
        for number in range(flaps):
            async with rig.plugin(preference=Preference.LOWEST):
                await rig.admit(pod(f"p{number}", cpu="10m", memory="1Mi", gpu="1"))
            did("plugins restarted")
        async with rig.plugin():
            await until(lambda: rig.free() == 0)
            admitted = [view.pod.uid for view in rig.queue.state.pod_views() if str(view.status) == "admitted"]
            held = [id_ for uid in admitted for id_ in rig.devices(uid)[GPU]]
            for view in rig.queue.state.pod_views():
                await rig.queue.run(Transaction.release, view.pod.uid)

            assert sorted(held) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
            assert rig.queue.state.pod_views() == ()
            await until(lambda: rig.free() == 4)  # the last registration may not be processed yet


@pytest.mark.soak
async def test_under_load_every_device_has_at_most_one_owner(directory):
    turns = rounds(5, soak=300)
    async with (
        start_rig(directory, now=empty_state(wait_enabled=True, capacity=100)) as rig,
        rig.plugin(preference=Preference.HIGHEST) as plugin,
    ):

        async def come_and_go(number):
            for turn in range(turns):
                uid = f"p{number}-{turn}"
                await rig.admit(pod(uid, cpu="10m", memory="1Mi", gpu="1"))
                await rig.queue.run(Transaction.release, uid)
                did("pods admitted and released")

        async def disturb():
            for number in range(2 * turns):
                plugin.inject("Allocate", Fault(error="no") if number % 2 else Fault(delay=0.005))
                plugin.set_health(f"gpu-{number % 4}", "Unhealthy" if number % 2 else "Healthy")
                calls = len(plugin.requests("Allocate"))
                with suppress(TimeoutError):  # all pods may be done
                    await asyncio.wait_for(plugin.wait_called("Allocate", calls + 2), 0.1)

        await asyncio.gather(disturb(), *map(come_and_go, range(8)))

        for id_ in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
            plugin.set_health(id_, "Healthy")
        await until(lambda: rig.free() == 4)
        assert (rig.queue.state.pending, rig.queue.state.pod_views()) == ({}, ())
        assert rig.queue.state.host.ledger.pods == {}


async def test_an_admission_that_cannot_be_saved_is_undone(directory):
    full: list[bool] = []

    def save(*_):
        if full:
            raise FileError("No space left on device")

    async with start_rig(directory, save=save) as rig, rig.plugin():
        full.append(True)

        with pytest.raises(NotReadyError, match="No space left"):
            await rig.admit(pod("a", gpu="1"))

        assert (rig.free(), rig.queue.state.pending, rig.queue.state.pod_views()) == (4, {}, ())
        full.clear()
        assert (await rig.admit(pod("a", gpu="1"))).decision.admitted


async def test_a_pending_pod_is_not_on_disk(directory):
    root = directory / "root"
    store = StateStore(root)
    saving = start_rig(directory, now=empty_state(wait_enabled=True), save=quiet_history(store).save)
    async with saving as rig, rig.plugin() as plugin:
        await rig.admit(pod("kept", cpu="1", gpu="1"))
        plugin.inject("Allocate", Fault(hang=True))
        request = asyncio.create_task(rig.admit(pod("half", cpu="1", gpu="1")))
        await until(lambda: "half" in rig.queue.state.pending)
        await rig.admit(pod("plain", cpu="1"))

        again = recover(
            StateStore(root), host(), options=RecoveryOptions(waiting=WaitingPods(), wait_enabled=True), now=0.0
        )

        assert again.problems == ()
        assert list(again.state.admitted) == ["kept", "plain"]
        assert again.state.admitted["kept"].grants == rig.queue.state.admitted["kept"].grants
        assert again.state.plugins == {GPU}
        assert again.state.host.ledger.devices.inventories[GPU].healthy == 0
        await rig.allocator.close()
        with pytest.raises(NotReadyError):
            await request
    store.close()


async def test_preferences_for_changed_devices_are_requested_again_a_limited_number_of_times(directory):
    class Fickle:
        """A plugin manager that changes the devices whenever a plugin is asked."""

        def __init__(self, rig, plugin):
            self.calls = 0
            self._here, self._plugin = rig, plugin

        async def preferred(self, ask: PreferenceRequest):
            self.calls += 1
            self._plugin.set_devices(f"{2 + self.calls % 2}@0")
            await until(lambda: self._here.healthy() == 2 + self.calls % 2)
            return ask.available[-1:]

        async def allocate(self, resource, ids):
            return await self._here.manager.allocate(resource, ids)

    async with start_rig(directory) as rig, rig.plugin("2@0", preference=Preference.LOWEST) as plugin:
        fickle: Any = Fickle(rig, plugin)
        rig.allocator.plugins = fickle  # plugins cannot be made to answer just in between

        admission = await rig.admit(pod("a", cpu="1", gpu="1"))

        assert admission.decision.admitted
        assert 1 < fickle.calls < 10


def test_an_agent_with_plugins_as_processes(tmp_path):
    root = tmp_path / "root"
    with running(root, devices="") as agent, plugin_process(root / "device-plugins", *GPUS, "--preferred", "highest"):
        wait_for_devices(agent)
        answer = agent.admit("a", cpu="2", gpu="1")
        shown = agent.pods()["a"]
        metrics = agent.http.get("/metrics").text
        listed = list_pods(root / "pod-resources/kubelet.sock")
        agent.kill()
    state = tmp_path / "kubelet"
    code, output = run_until_exit(root, "--export", state, devices="")
    with running(root, devices="") as agent:  # and no plugin
        after = agent.pods()["a"]
        rejected = agent.admit("b", gpu="1")
        grants = stored(root).pods[0].grants

    with running(tmp_path / "other", "--state", state, devices="") as agent:
        taken_over = agent.pods()["a"]

    (placement,) = shown["placements"]
    assert answer.status_code == 201, answer.text
    assert placement["given"]["device"] == {GPU: "gpu-1"}
    assert shown["grants"]["app"][GPU]["envs"] == {"GPU_DEVICES": "gpu-1"}
    assert (after["placements"], after["grants"]) == (shown["placements"], shown["grants"])
    assert grants == shown["grants"]
    assert rejected.status_code == 409
    assert 'kubelet_device_plugin_registration_total{resource_name="example.com/gpu"} 1' in metrics
    assert 'kubelet_device_plugin_alloc_duration_seconds_count{resource_name="example.com/gpu"} 1' in metrics
    assert [(devices.resource_name, list(devices.device_ids)) for devices in listed["a"]] == [(GPU, ["gpu-1"])]
    assert code == 0, output
    assert response(state) == {"GPU_DEVICES": "gpu-1"}
    assert (taken_over["placements"][0]["given"], taken_over["grants"]) == (placement["given"], shown["grants"])


def list_pods(path):
    """Pod → the devices that PodResources lists."""

    async def ask():
        async with unix_grpc.channel(path) as line:
            events = await unix_grpc.call(
                line,
                "/v1.PodResourcesLister/List",
                wire.ListPodResourcesRequest(),
                response=wire.ListPodResourcesResponse,
                seconds=60,
                error=plugin_error,
            )
        return {pod.name: [device for app in pod.containers for device in app.devices] for pod in events.pod_resources}

    return asyncio.run(ask())


def response(state):
    """The environment variables in the kubelet's checkpoint."""
    files: Any = state_files.read_state_files(state, gates=host().settings.gates)
    (entry,) = files.devices.entries
    return dict(plugin_wire.ContainerAllocateResponse.FromString(entry.response).envs)


def test_an_agent_waits_for_plugins_that_are_late_after_a_restart(tmp_path, directory):
    plugins, lister = directory / "plugins", directory / "list.sock"
    options = ("--on-misfit", "wait", "--device-plugin-dir", plugins, "--pod-resources-socket", lister)
    with running(tmp_path / "root", *options, devices="") as agent, plugin_process(plugins, *GPUS):
        wait_for_devices(agent)
        agent.admit("runs", gpu="1")
        agent.kill()
    with running(tmp_path / "root", *options, devices="") as agent:
        waits = agent.admit("waits", gpu="1")
        before, listed = agent.pods(), list_pods(lister)
        with plugin_process(plugins, *GPUS):
            wait_for(lambda: agent.pods()["waits"]["status"] == "admitted")
            after = agent.pods()

    assert waits.status_code == 202
    rejection = waits.json()["decision"]["rejection"]
    assert rejection["reason"] == "UnexpectedAdmissionError"
    assert f"no healthy devices present; cannot allocate unhealthy devices {GPU}" in rejection["message"]
    assert [list(devices.device_ids) for devices in listed["runs"]] == [["gpu-0"]]
    assert before["runs"]["placements"] == after["runs"]["placements"]
    assert after["runs"]["placements"][0]["given"]["device"] == {GPU: "gpu-0"}
    assert after["waits"]["placements"][0]["given"]["device"] == {GPU: "gpu-1"}


@pytest.mark.soak
def test_killing_plugins_and_agent_under_load_loses_no_acknowledged_decision(tmp_path):
    kill_plugins_too(tmp_path / "root", kills=rounds(1, soak=60), seed=SEED)

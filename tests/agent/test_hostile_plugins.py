"""Hostile device plugins harm only the pods that request their devices."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from alignup.agent import api
from alignup.agent.metrics import Metrics
from alignup.agent.pending_admission import with_announced_devices
from alignup.agent.recovery import RecoveryOptions, recover
from alignup.agent.transaction import Transaction
from alignup.documents import codec
from alignup.documents.decisions import decision_document, from_document
from alignup.documents.machines import machine_to_document
from alignup.kubernetes.plugins.endpoint import PluginTimeouts
from alignup.picture.machine_svg import draw_svg
from alignup.store.state_store import StateStore
from alignup.web.metrics import metrics_lines
from alignup.web.responses import BusyError, NotReadyError
from tests.agent.hostile_plugin import HostilePlugin
from tests.agent.plugin_rig import start_rig
from tests.agent.states import empty_state, save_states
from tests.align.hosts import GPU, host, pod
from tests.deadlines import until
from tests.effort import SEED, attacked, rounds
from tests.grpc_fixtures import anyio_backend, one_loop
from tests.short_paths import short_directory

__all__ = ["anyio_backend", "one_loop"]

pytestmark = pytest.mark.anyio

FPGA = "example.com/fpga"
TIMEOUTS = PluginTimeouts(dial=2, preferred=2, allocate=2)  #: a busy machine is slow


def check(rig, root):
    """Check that no device has two owners, and that everything can be shown, saved and restored."""
    state = rig.queue.state
    for resource, in_use in state.host.ledger.devices.in_use.items():
        owners = Counter(
            id_
            for uid in state.host.ledger.pods
            for id_ in state.host.ledger.devices.holds(uid, "app").get(resource, ())
        )
        assert set(owners) == set(in_use)
        assert set(owners.values()) <= {1}
    shown = with_announced_devices(state.settled_host())
    codec.encode(machine_to_document(shown.machine))
    draw_svg(shown.machine, shown.ledger).encode()
    assert list(metrics_lines(Metrics(lambda: shown).registry))
    for view in state.pod_views():
        assert codec.encode(api.pod_detail_document(view))
        stored = codec.load(codec.encode(decision_document(view.decision)))
        assert from_document(stored).placements == view.decision.placements
    save_states(root, state)
    recovered = recover(StateStore(root), host(), options=RecoveryOptions(wait_enabled=True), now=0.0)
    assert recovered.problems == ()
    assert recovered.state.host.ledger.devices.in_use == state.settled_host().ledger.devices.in_use
    assert [view.pod.uid for view in recovered.state.pod_views()] == [view.pod.uid for view in state.pod_views()]


@pytest.mark.soak
async def test_hostile_plugins_harm_only_pods_that_request_their_devices():
    findings: list[str] = []
    dice, turns = random.Random(SEED), rounds(8, soak=1_000)
    with short_directory() as directory:
        state = empty_state(wait_enabled=True, capacity=50, memory=False)
        async with (
            start_rig(directory, now=state, timeouts=TIMEOUTS) as rig,
            HostilePlugin(GPU, dice=dice, directory=directory, endpoint="one.sock") as first,
            HostilePlugin(GPU, dice=dice, directory=directory, endpoint="two.sock") as two,
            rig.plugin("1@0", resource=FPGA),
        ):
            for turn in range(turns):
                await dice.choice((first, two)).misbehave()
                victims = [pod(f"victim-{turn}-{number}", cpu="10m", memory="1Mi", gpu="1") for number in range(2)]
                clients = [asyncio.create_task(rig.admit(victim)) for victim in victims]
                if dice.random() < 0.2:
                    clients[0].cancel()
                bystander = pod(f"bystander-{turn}", None, **{"cpu": "10m", "memory": "1Mi", FPGA: "1"})
                assert (await rig.admit(bystander)).decision.admitted
                await rig.queue.run(Transaction.release, bystander.uid)
                for client in clients:
                    with suppress(asyncio.CancelledError, BusyError, NotReadyError):
                        await client
                try:
                    check(rig, directory / "root")
                except Exception as error:  # noqa: BLE001 - all of them are reported together
                    findings.append(f"step {turn}: {error!r}")
                for view in rig.queue.state.pod_views():
                    if dice.random() < 0.5:
                        await rig.queue.run(Transaction.release, view.pod.uid)
            await first.behave()
            await two.behave()
            await until(lambda: not rig.queue.state.pending)
            for uid in (*rig.queue.state.waiting.uids(), *rig.queue.state.admitted):
                await rig.queue.run(Transaction.release, uid)
            await until(lambda: not rig.queue.state.pod_views() and rig.free() == rig.healthy() == 4)
            assert rig.queue.state.host.ledger.pods == {}
    attacked("hostile steps of device plugins", turns, findings)

"""Long runs of gate and extender under load and faults: no kubelet rejects a pod, and nothing is promised twice.

A real API server and scheduler, simulated kubelets, and ``alignup schedule`` as processes that are killed. ``make
soak-cluster`` runs it at full length, which takes more than an hour. These variables choose other lengths:

    ALIGNUP_SOAK_KILLS     kills without election          ALIGNUP_SOAK_RATE      pods a second
    ALIGNUP_SOAK_STANDBY   kills of a leader with standby  ALIGNUP_SOAK_MINUTES   of churn
    ALIGNUP_SOAK_OUTAGE    seconds without API server, twice
"""

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from e2e import control_plane
from e2e.cluster_load import ClusterLoad, check_load, check_memory, loaded_cluster, replace_nodes
from e2e.control_plane import ControlPlane, extenders
from e2e.marks import needs
from e2e.schedule_replicas import ScheduleReplicas, forwarder
from e2e.watch_faults import WatchFaults, disturbed
from tests.effort import SEED, rounds

pytestmark = [needs(control_plane.missing(("kube-apiserver", "kube-scheduler"))), pytest.mark.anyio]

KILLS = int(os.environ.get("ALIGNUP_SOAK_KILLS", rounds(2, soak=90)))
STANDBY_KILLS = int(os.environ.get("ALIGNUP_SOAK_STANDBY", rounds(1, soak=10)))
RATE = float(os.environ.get("ALIGNUP_SOAK_RATE", "10"))
MINUTES = float(os.environ.get("ALIGNUP_SOAK_MINUTES", rounds(1, soak=20)))
OUTAGE_SECONDS = float(os.environ.get("ALIGNUP_SOAK_OUTAGE", rounds(5, soak=60)))
NODES = 24
PODS_BETWEEN_KILLS = 8
JUMPS = (3600.0, -3600.0, 0.0)  #: seconds by which the time of day of the service is wrong


@asynccontextmanager
async def running(
    plane: ControlPlane, replicas: ScheduleReplicas, *, count: int, extender: bool, gated: float
) -> AsyncIterator[ClusterLoad]:
    """Run load, *count* replicas, and a scheduler."""
    load = loaded_cluster(plane, nodes=NODES, rate=RATE, gated=gated, seed=SEED)
    async with load as running_load, AsyncExitStack() as stack:
        stack.callback(replicas.close)
        for _ in range(count):
            replicas.start()
        replacing = asyncio.create_task(_replace_ended(replicas))
        stack.callback(replacing.cancel)
        await asyncio.to_thread(replicas.wait_leader)

        def port() -> int | None:
            serving = replicas.leader() if count > 1 else next(iter(replicas.running), None)
            return serving.port if serving else None

        configuration = extenders(stack.enter_context(forwarder(port))) if extender else {}
        plane.start_scheduler({"percentageOfNodesToScore": 100, **configuration})
        yield running_load


@pytest.mark.parametrize("standby", [False, True], ids=["alone", "with a standby"])
@pytest.mark.parametrize("front", ["gate", "extender"])
async def test_no_pod_is_rejected_however_often_the_service_is_killed(
    plane: ControlPlane, *, front: str, standby: bool
) -> None:
    gate = front == "gate"
    replicas = ScheduleReplicas(plane, leader_election=standby, gate=gate, webhook=False)
    chance, count = random.Random(SEED), 2 if standby else 1
    detail = lambda: plane.log("alignup-schedule", 4000)  # noqa: E731
    kills = STANDBY_KILLS if standby else KILLS
    async with running(plane, replicas, count=count, extender=not gate, gated=float(gate)) as load:
        for _ in range(kills):
            await load.admitted(chance.randint(1, PODS_BETWEEN_KILLS), detail)
            await asyncio.sleep(chance.random())  # at any moment
            serving = await asyncio.to_thread(replicas.leader) if standby else replicas.running[0]
            if serving is not None:
                await asyncio.to_thread(replicas.kill, serving)
            replicas.start()
            if standby:
                await asyncio.to_thread(replicas.wait_leader)
        await load.finish(detail)
        check_load(load, f"{front} killed {kills} times{' with a standby' if standby else ''}")


async def test_churn_wrong_clocks_and_disturbed_watches_reject_no_pod_and_take_no_memory(
    plane: ControlPlane,
) -> None:
    """Gate and extender in one process; the API server is away twice. Nodes come and go, under new names."""
    clock = plane.directory / "clock"
    clock.write_text("0")
    faults = WatchFaults()
    seconds = MINUTES * 60
    async with AsyncExitStack() as stack:
        access = await stack.enter_async_context(disturbed(plane, faults))
        program = ("-m", "e2e.shifted_clock", str(clock))
        replicas = ScheduleReplicas(
            plane, leader_election=False, gate=True, webhook=False, program=program, access=access
        )
        load = await stack.enter_async_context(running(plane, replicas, count=1, extender=True, gated=0.5))
        (replica,) = replicas.running
        memory: list[tuple[float, float]] = []  #: time, MiB
        tasks = [
            asyncio.create_task(replace_nodes(load.nodes, NODES)),
            asyncio.create_task(_shift_clock(clock, seconds / 12)),
            asyncio.create_task(_measure(replica.process.pid, memory)),
        ]
        # Pods pile up while the API server is away. Memory may grow to what they take the first time, not the second.
        for pause in (seconds / 8, seconds / 2):
            await asyncio.sleep(pause)
            plane.kill()
            await asyncio.sleep(OUTAGE_SECONDS)
            await asyncio.to_thread(plane.start)
        await asyncio.sleep(max(0.0, seconds * 3 / 8 - 2 * OUTAGE_SECONDS))
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result for result in results if not isinstance(result, asyncio.CancelledError)] == []
        assert replica.process.poll() is None, plane.log("alignup-schedule")
        await load.finish(lambda: plane.log("alignup-schedule", 4000))
        names = load.nodes.names
        check_load(load, f"{MINUTES:g} minutes of churn, {names} names of nodes, watches {dict(faults.done)}")
    check_memory(memory, seconds)
    assert names > NODES
    assert faults.done["repeated"]


async def _replace_ended(replicas: ScheduleReplicas) -> None:
    while True:
        await asyncio.sleep(0.5)
        replicas.replace_ended()


async def _shift_clock(file: Path, seconds: float) -> None:
    while True:
        for jump in JUMPS:
            await asyncio.sleep(seconds)
            file.write_text(str(jump))  # noqa: ASYNC240 - small


async def _measure(pid: int, memory: list[tuple[float, float]]) -> None:
    """Note the resident memory of a process once a second."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        size = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())  # noqa: ASYNC240
        memory.append((loop.time() - started, int(size[1]) / 1024 if size else 0.0))
        await asyncio.sleep(1.0)

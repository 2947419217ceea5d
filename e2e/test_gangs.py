"""Two gangs that fit only one at a time, with a real API server and scheduler, and simulated kubelets.

Gangs are PodGroups of Kubernetes where it has them (1.36 and 1.37, with their feature gates), or groups by label, which
the scheduler does not know. ``ALIGNUP_GANG_ROUNDS`` is the number of rounds.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from alignup.kubernetes.api import PODS, ApiClient, Resource
from alignup.schedule.pod_groups import COSCHEDULING, KUBERNETES, RESOURCES, SIZE_ANNOTATION, PodGroup
from e2e import control_plane
from e2e.api import Document
from e2e.control_plane import ControlPlane
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.schedule_replicas import NAMESPACE, ScheduleReplicas, extender_replicas, gate_controllers
from e2e.simulated_cluster import NAMESPACES, in_thread, pod, running, until, working_nodes

pytestmark = [needs(control_plane.missing()), pytest.mark.anyio]

ROUNDS = int(os.environ.get("ALIGNUP_GANG_ROUNDS", "20"))
START_SECONDS = 60.0  #: between the first and the last pod of a gang, at most; a new leader comes after 16 seconds
SIZE, CPUS = 4, 3  #: two of these pods fill a node
NODES = ("a", "b")
#: The flags of API server and scheduler by the minor version of Kubernetes, and the version of the PodGroup.
GATES = {36: "GenericWorkload=true,GangScheduling=true", 37: "GenericWorkload=true"}
VERSIONS = {36: 1, 37: 0}


def minor(programs: Path) -> int:
    return int(control_plane.version(programs).split(".")[1])


def pod_groups(programs: Path | None) -> tuple[str, Resource[PodGroup]]:
    """Return the flag of the feature gates of PodGroups, and their resource, in this version of Kubernetes."""
    number = minor(programs or control_plane.directories()[0])
    return f"--feature-gates={GATES[number]}", RESOURCES[KUBERNETES][VERSIONS[number]]


@pytest.fixture(params=control_plane.directories() or (None,), ids=control_plane.version)
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of each version, with PodGroups."""
    gates, group = pod_groups(request.param)
    flags = ("--disable-admission-plugins=ServiceAccount", gates, f"--runtime-config={group.api_version}=true")
    with ControlPlane(tmp_path, nodes=NODES, flags=flags, programs=request.param) as control:
        control.scheduler_flags = (gates,)
        yield control


class GangRounds:
    """Gangs that come and go, and what was seen of them."""

    def __init__(
        self, plane: ControlPlane, client: ApiClient, nodes: FakeNodes, *, by_label: bool, gated: bool
    ) -> None:
        self._plane, self._client, self._nodes = plane, client, nodes
        self._by_label, self._gated = by_label, gated
        _, self._resource = pod_groups(plane.programs)
        self.longest = 0.0  #: seconds from the first pod of a gang that runs to the last
        self.halves: list[str] = []  #: gangs that ran in part for too long

    async def create(self, name: str) -> None:
        if not self._by_label:
            policy = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
            await self._client.create(self._resource, {"metadata": {"name": name}, "spec": policy}, namespace="default")
        for number in range(SIZE):
            await self._client.create(PODS, self._pod(name, number), namespace="default")

    def _pod(self, group: str, number: int) -> Document:
        document = pod(f"{group}-{number}", CPUS, gated=self._gated)
        if self._by_label:
            document["metadata"] |= {"labels": {COSCHEDULING: group}, "annotations": {SIZE_ANNOTATION: str(SIZE)}}
        else:
            document["spec"]["schedulingGroup"] = {"podGroupName": group}
        return document

    def running(self, group: str) -> int:
        return sum(name.startswith(f"{group}-") for name in self._nodes.running)

    async def watch(self) -> None:
        """Measure how long gangs run in part, until cancelled."""
        since: dict[str, float] = {}
        whole: set[str] = set()
        while True:
            groups = {name.rpartition("-")[0] for name in self._nodes.running}
            for group in groups - whole:
                since.setdefault(group, time.monotonic())
                seconds = time.monotonic() - since[group]
                if self.running(group) == SIZE:
                    whole.add(group)
                    self.longest = max(self.longest, seconds)
                elif seconds > START_SECONDS and group not in self.halves:
                    self.halves.append(group)
            await asyncio.sleep(0.01)

    async def delete(self, group: str) -> None:
        for number in range(SIZE):
            await self._client.delete(PODS.at(f"{group}-{number}", namespace="default"))
        await until(lambda: not self.running(group), self._plane)
        if not self._by_label:
            await self._client.delete(self._resource.at(group, namespace="default"))

    async def run(self, rounds: int, replicas: ScheduleReplicas) -> None:
        """Let two gangs compete in every round; kill the leader in the middle of one."""
        for number in range(rounds):
            first, second = f"first-{number}", f"second-{number}"
            await asyncio.gather(self.create(first), self.create(second))
            await until(lambda: self.running(first) or self.running(second), self._plane)  # noqa: B023
            if number == rounds // 2:
                await asyncio.to_thread(replicas.start)
                await asyncio.to_thread(replicas.kill_leader)
            await until(lambda: SIZE in {self.running(first), self.running(second)}, self._plane)  # noqa: B023
            winner, loser = (first, second) if self.running(first) == SIZE else (second, first)
            assert self.running(loser) == 0
            await self.delete(winner)
            await until(lambda: self.running(loser) == SIZE, self._plane)  # noqa: B023
            await self.delete(loser)
            assert self._nodes.rejected == []
            assert self.halves == []


@pytest.mark.parametrize("by_label", [False, True], ids=["PodGroup", "label"])
@pytest.mark.parametrize("mode", ["extender", "gate"])
async def test_two_gangs_that_fit_only_one_at_a_time(plane: ControlPlane, mode: str, *, by_label: bool) -> None:
    start = extender_replicas if mode == "extender" else gate_controllers
    async with working_nodes(plane, *NODES) as (client, nodes):
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        rounds = GangRounds(plane, client, nodes, by_label=by_label, gated=mode == "gate")
        async with in_thread(start(plane, count=2)) as replicas, running(rounds.watch()):
            begun = time.monotonic()
            await rounds.run(ROUNDS, replicas)
        seconds = time.monotonic() - begun
        print(f"{mode}: {ROUNDS} rounds in {seconds:.0f} s; a gang started within {rounds.longest:.2f} s", flush=True)

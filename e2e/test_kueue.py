"""``alignup schedule --kueue`` with a real API server and the resource definitions of Kueue.

Kueue itself does not run: the test reserves quota, admits and evicts workloads as Kueue documents it, with its field
manager. ``ALIGNUP_KUEUE_CRDS`` names a directory with the definitions: config/components/crd/bases in Kueue's
repository.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from alignup.kubernetes.api import PODS, ApiClient, find_access
from alignup.kubernetes.api.client import PatchType
from alignup.kubernetes.api.errors import ForbiddenError
from alignup.kubernetes.api.kueue_resources import (
    ADMISSION_CHECKS,
    RESOURCE_FLAVORS,
    WORKLOAD_ANNOTATION,
    WORKLOADS,
    CheckState,
    CheckStatus,
    KueueWorkload,
)
from alignup.schedule.kueue_checks import CONTROLLER
from alignup.schedule.service import ScheduleService
from e2e import control_plane
from e2e.api import Api
from e2e.control_plane import STRANGER, ControlPlane, extenders
from e2e.definitions import DEFINITIONS, DEPLOYED, wait_served
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.simulated_cluster import pod, poll, running, running_service, until, working_nodes

VARIABLE = "ALIGNUP_KUEUE_CRDS"


def _missing() -> str | None:
    directory = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not list(directory.glob("kueue.x-k8s.io_workloads.yaml")):
        return f"set {VARIABLE} to config/components/crd/bases of Kueue's repository"
    return control_plane.missing(("kube-apiserver", "kube-scheduler"))


pytestmark = [needs(_missing()), pytest.mark.anyio]


CHANGED = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def pending(check: str) -> dict[str, str]:
    return {"name": check, "state": "Pending", "message": "", **CHANGED}


class ScriptedKueue:
    """What Kueue writes to workloads, as its documentation of admission checks says."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def define(self) -> None:
        for resource in (WORKLOADS, ADMISSION_CHECKS, RESOURCE_FLAVORS):
            path = Path(os.environ[VARIABLE]) / f"kueue.x-k8s.io_{resource.plural}.yaml"
            await self._client.create(DEFINITIONS, yaml.safe_load(path.read_text("utf-8")))
        for resource in (WORKLOADS, ADMISSION_CHECKS, RESOURCE_FLAVORS):
            await wait_served(self._client, resource)
        for name, controller in (("alignup", CONTROLLER), ("other", "example.com/other")):
            await self._client.create(
                ADMISSION_CHECKS, {"metadata": {"name": name}, "spec": {"controllerName": controller}}
            )

    async def submit(self, name: str, count: int, cpus: int) -> None:
        template = {"spec": {**pod(name, cpus)["spec"], "restartPolicy": "Never"}}
        spec = {"podSets": [{"name": "main", "count": count, "template": template}]}
        await self._client.create(WORKLOADS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
        await self.reserve(name, count)

    async def reserve(self, name: str, count: int) -> None:
        """Reserve quota; the checks are pending then."""
        usage = {"name": "main", "count": count, "flavors": {}, "resourceUsage": {}}
        reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", **CHANGED}
        status = {
            "conditions": [reserved],
            "admission": {"clusterQueue": "queue", "podSetAssignments": [usage]},
            "admissionChecks": [pending("alignup"), pending("other")],
        }
        ref = WORKLOADS.at(name, namespace="default", subresource="status")
        await self._client.apply(ref, {"status": status}, manager="kueue-admission")

    async def add_check(self, check: str, workload: str) -> None:
        """Add a check of our controller to a workload that has its quota."""
        await self._client.create(
            ADMISSION_CHECKS, {"metadata": {"name": check}, "spec": {"controllerName": CONTROLLER}}
        )
        ref = WORKLOADS.at(workload, namespace="default", subresource="status")
        added = [{"op": "add", "path": "/status/admissionChecks/-", "value": pending(check)}]
        await self._client.patch(ref, added, patch_type=PatchType.JSON, manager="kueue")

    async def check(self, name: str, check: str = "alignup") -> CheckStatus:
        workload: KueueWorkload = await self._client.get(WORKLOADS.at(name, namespace="default"))
        (status,) = [status for status in workload.status.admission_checks if status.name == check]
        return status

    async def wait(self, name: str, state: CheckState, check: str = "alignup") -> CheckStatus:
        async def status() -> CheckStatus | None:
            status = await self.check(name, check)
            return status if status.state == state else None

        return await poll(status)


@asynccontextmanager
async def kueue_cluster(plane: ControlPlane) -> AsyncIterator[tuple[ApiClient, ScriptedKueue, FakeNodes]]:
    async with working_nodes(plane) as (client, nodes):
        kueue = ScriptedKueue(client)
        await kueue.define()
        async with running_service(plane, "--kueue") as service:
            plane.start_scheduler(extenders(service.port))
            yield client, kueue, nodes


async def test_jobs_start_only_when_all_their_pods_fit(plane: ControlPlane) -> None:
    """Three nodes hold one pod of 4 CPUs each, so of two jobs of two such pods, one starts at a time."""
    async with kueue_cluster(plane) as (client, kueue, nodes):
        await kueue.submit("first", 2, 4)
        ready = await kueue.wait("first", CheckState.READY)
        assert ready.message == "its 2 pods fit together on 2 nodes"
        assert (await kueue.check("first", "other")).state == CheckState.PENDING  # nobody answers that one

        await kueue.submit("second", 2, 4)
        retry = await kueue.wait("second", CheckState.RETRY)
        together = "its 2 pods fit together on 2 nodes"
        assert retry.message.startswith(
            f"{together}, but not beside the pods of default/first, which are about to start; "
        )

        for number in range(2):
            started = pod(f"first-{number}", 4)
            started["metadata"]["annotations"] = {WORKLOAD_ANNOTATION: "first"}
            await client.create(PODS, started, namespace="default")
        await until(lambda: len(nodes.running) == 2, plane)
        for number in range(2):
            await client.delete(PODS.at(f"first-{number}", namespace="default"))
        await until(lambda: not nodes.running, plane)
        await client.delete(WORKLOADS.at("first", namespace="default"))

        await kueue.reserve("second", 2)  # Kueue tries again
        await kueue.wait("second", CheckState.READY)
        assert nodes.rejected == []


async def test_a_check_that_is_added_later_leaves_the_first_one_as_it_is(plane: ControlPlane) -> None:
    async with kueue_cluster(plane) as (_, kueue, _):
        await kueue.submit("job", 2, 4)
        first = await kueue.wait("job", CheckState.READY)

        await kueue.add_check("second", "job")

        await kueue.wait("job", CheckState.READY, "second")
        assert await kueue.check("job") == first
        assert (await kueue.check("job", "other")).state == CheckState.PENDING


async def test_the_rights_of_the_deployment_suffice_and_no_more_is_allowed(plane: ControlPlane) -> None:
    async with working_nodes(plane) as (admin, _):
        kueue = ScriptedKueue(admin)
        await kueue.define()
        for path in (DEPLOYED / "schedule" / "access.yaml", DEPLOYED / "kueue" / "access.yaml"):
            role = next(each for each in yaml.safe_load_all(path.read_text("utf-8")) if each["kind"] == "ClusterRole")
            Api(plane).allow_stranger(role["metadata"]["name"], *role["rules"])
        access = find_access(plane.kubeconfig(plane.directory / "stranger.json", {"token": STRANGER}))
        async with ApiClient(access) as client, running(ScheduleService(client, kueue=True).run()):
            await kueue.submit("job", 3, 4)
            await kueue.wait("job", CheckState.READY)
            await poll(lambda: is_active(admin, "alignup"))
            with pytest.raises(ForbiddenError):
                await client.patch(WORKLOADS.at("job", namespace="default"), {"spec": {"active": False}})
        assert not await is_active(admin, "other")


async def is_active(client: ApiClient, check: str) -> bool:
    return bool((await client.get(ADMISSION_CHECKS.at(check))).status.conditions)

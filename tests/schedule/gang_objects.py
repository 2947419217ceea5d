"""Pods of gangs, the objects of their groups, and a scheduler that asks about them."""

import asyncio
from dataclasses import replace
from typing import Any

from alignup.align.workload import Pod
from alignup.schedule.pod_groups import COSCHEDULING, KUBERNETES, RESOURCES, SIZE_ANNOTATION
from alignup.testing.api_server import ServedResource
from tests.align.hosts import pod
from tests.observe.api_objects import api_pod
from tests.schedule.test_extender import bound, filtered

SERVED_GROUPS = [
    ServedResource(kind=resource.kind, plural=resource.plural, group=resource.group, version=resource.version)
    for resources in RESOURCES.values()
    for resource in resources
]


def member(
    name: str, cpus: int = 3, *, group: str = "train", size: int | None = None, namespace: str = "default"
) -> Pod:
    """A pod of a group by label; with *size*, the group needs so many."""
    made = pod(name, cpu=str(cpus), memory="1Gi")
    annotations = {SIZE_ANNOTATION: str(size)} if size is not None else {}
    return replace(made, namespace=namespace, labels={COSCHEDULING: group}, annotations=annotations)


def gang(count: int = 4, cpus: int = 3, *, group: str = "train", size: int | None = None) -> list[Pod]:
    return [member(f"{group}-{number}", cpus, group=group, size=size or count) for number in range(count)]


def pod_group(minimum: int, *, source: str = KUBERNETES, version: int = 0, name: str = "train") -> dict[str, Any]:
    """The object of a group that needs *minimum* pods, in one of the *versions* of its API."""
    resource = RESOURCES[source][version]
    spec: dict[str, Any] = {"minMember": minimum}
    if source == KUBERNETES:
        spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


class Scheduler:
    """Asks the extender about pods as kube-scheduler does."""

    def __init__(self, http: Any, names: str = "ab") -> None:
        self._http, self.names = http, names

    async def ask(self, asked: Pod, names: str | None = None, **spec: Any) -> list[str]:
        """Return the nodes that the extender offers."""
        answer = await filtered(self._http, api_pod(asked, phase="Pending", **spec), names or self.names)
        self.reasons = answer["FailedAndUnresolvableNodes"] | answer["FailedNodes"]
        assert not answer["Error"]
        offered: list[str] = answer["NodeNames"]
        return offered

    async def bind(self, asked: Pod, node: str) -> str:
        """Return why the extender did not bind the pod, or nothing."""
        problem: str = await bound(self._http, asked, node)
        return problem

    async def schedule(self, pods: list[Pod], **spec: Any) -> list[str]:
        """Ask about all pods of a group, then bind them in parallel; return the problems."""
        offered = [await self.ask(each, **spec) for each in pods]
        if not all(offered):
            return ["not placed"]
        return await asyncio.gather(*(self.bind(each, nodes[0]) for each, nodes in zip(pods, offered, strict=True)))

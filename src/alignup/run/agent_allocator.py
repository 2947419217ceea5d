"""The allocator that asks the node agent: a run is a pod with one container."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from alignup.align.bits import CpuSet
from alignup.align.errors import EnforceError
from alignup.align.reason_codes import NOT_SCHEDULABLE
from alignup.align.workload.names import DEVICES_ANNOTATION, POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.run.process import NodeMap
from alignup.run.request import (
    CONTAINER,
    RunPlacement,
    RunRejectedError,
    RunRequest,
    missing_devices,
    resolve_placement,
)
from alignup.web.agent_client import AgentClient

Document = Mapping[str, Any]

NAMESPACE = "run"  #: of the pods that stand for runs


class PolicyRefusedError(EnforceError):
    """An agent that does not let pods choose another policy than its own."""


class AgentAllocator:
    """Allocates through the agent. *explain* prints the agent's reasons for a rejection."""

    def __init__(self, agent: AgentClient, *, online: CpuSet, explain: Callable[[Document], None]) -> None:
        self._agent = agent
        self._online = online
        self._explain = explain
        self.address = agent.address

    def load(self, *, active: Collection[str], finished: Collection[str]) -> None:
        del active
        for uid in finished:
            self._agent.release(uid)

    def admit(self, request: RunRequest) -> RunPlacement:
        """Admit a run. One that the agent would queue is rejected: a waiting run tries again itself."""
        admission = self._agent.admit(pod_manifest(request))
        decision = admission["decision"]
        if admission["outcome"] not in {"admitted", "kept"}:
            self._agent.release(request.uid)
            reason = str((decision["rejection"] or {}).get("reason", admission["outcome"]))
            raise RunRejectedError(reason, lambda: self._explain(admission))
        if request.policy not in {None, decision["policy"]}:
            self._agent.release(request.uid)
            raise PolicyRefusedError(f"the agent uses policy {decision['policy']} and does not let pods choose another")
        (document,) = decision["placements"]
        if missing_names := missing_devices(request, document):
            self._agent.release(request.uid)
            message = f"not schedulable: no device plugin of the agent provides {', '.join(missing_names)}"
            rejection = {"reason": NOT_SCHEDULABLE, "message": message}
            document_of_rejection = {"decision": {**decision, "rejection": rejection}}
            raise RunRejectedError(NOT_SCHEDULABLE, lambda: self._explain(document_of_rejection))
        placement = resolve_placement(
            document,
            shared=0 if document["given"].get("cpu") else self.shared(),
            devices=self._agent.devices() if document["given"].get("device") else {},
            node_map=NodeMap.read(),
            strict=decision["policy"] in {"restricted", "single-numa-node"},
        )
        # Device plugins also give mounts and device files, which are for containers only.
        grants = admission["pod"].get("grants", {}).get(CONTAINER, {})
        variables = {name: str(value) for grant in grants.values() for name, value in grant["envs"].items()}
        return placement._replace(environment=variables)

    def shared(self) -> CpuSet:
        return self._online & ~self._agent.exclusive_cpus()

    def release(self, uid: str) -> None:
        self._agent.release(uid)

    def save(self) -> None:
        """The agent saves each decision itself."""


def pod_manifest(request: RunRequest) -> dict[str, Any]:
    amounts = dict(request.amounts)
    if amounts.get("cpu", "").isdecimal() and "memory" not in amounts:
        amounts["memory"] = "1Mi"  # only a pod with memory limits is Guaranteed
    choices = {
        POLICY_ANNOTATION: request.policy,
        SCOPE_ANNOTATION: request.scope,
        DEVICES_ANNOTATION: request.devices_near,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.name,
            "namespace": NAMESPACE,
            "uid": request.uid,
            "annotations": {name: value for name, value in choices.items() if value},
        },
        "spec": {"containers": [{"name": CONTAINER, "resources": {"limits": amounts, "requests": amounts}}]},
    }

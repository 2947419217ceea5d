"""Workloads that a scheduler without knowledge of NUMA nodes places wrongly, and counts of their pods by outcome.

The narrow node has four NUMA nodes with 1, 2, 2 and 2 free CPUs and 384 MiB each, a wide one has two with 3 and 4 free
CPUs and 768 MiB each. Every workload fits somewhere.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from e2e.api import PODS, Api, Document, until
from e2e.observed_node import is_admitted, make_container, make_pod

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
REASON = "TopologyAffinityError"
WINDOW = 60.0  #: seconds in which the pods of a Deployment are counted
QUIET = 15.0  #: seconds without a change after which nothing changes any more
SEED = 4
_SCHEDULER = "default-scheduler"


@dataclass(frozen=True)
class PodCounts:
    """The pods of a workload, counted by outcome."""

    running: int = 0  #: or starting, after the kubelet has admitted them
    succeeded: int = 0
    rejected: int = 0  #: with TopologyAffinityError
    failed: int = 0  #: for other reasons; containers fail to start on a busy machine, or when a kubelet is killed
    pending: int = 0
    reasons: tuple[str, ...] = field(default=(), compare=False)  #: of the pods that failed

    @property
    def admitted(self) -> int:
        return self.running + self.succeeded + self.failed

    def __str__(self) -> str:
        names = ("running", "succeeded", "rejected", "failed", "pending")
        shown = ", ".join(f"{getattr(self, name)} {name}" for name in names if getattr(self, name))
        return " ".join((shown or "no pods", *self.reasons))


@dataclass(frozen=True)
class Workload:
    name: str
    nodes: tuple[str, ...]  #: where it may run
    run: Callable[[Api], PodCounts]


def workloads(narrow: str, wide: str, other_wide: str, *, pods: int = 40) -> Iterator[Workload]:
    """Return the workloads S1 to S5b; S4 has *pods* pods."""
    mixed, both_wide = (narrow, wide), (wide, other_wide)
    yield Workload("S1", mixed, lambda api: run_deployment(api, 2, cpu=3, memory="32Mi"))
    yield Workload("S2", mixed, lambda api: run_together(api, (2, 1, 4, 2, 3, 2)))
    yield Workload("S3", mixed, lambda api: run_deployment(api, 2, cpu=1, memory="500Mi"))
    yield Workload("S4", mixed, lambda api: run_stream(api, pods))
    yield Workload("S5", both_wide, lambda api: run_in_turn(api, deployment=False))
    yield Workload("S5b", both_wide, lambda api: run_in_turn(api, deployment=True))


def run_deployment(api: Api, replicas: int, *, cpu: int, memory: str) -> PodCounts:
    """Count the pods of a Deployment over the window."""
    api.request("POST", DEPLOYMENTS, _deployment(replicas, make_container(cpu=cpu, memory=memory)))
    return _watch(api)


def run_together(api: Api, cpus: Iterable[int]) -> PodCounts:
    """Create pods at once, and count them when nothing changes any more."""
    for number, count in enumerate(cpus):
        create_pod(api, f"together-{number}", make_container(cpu=count, memory="32Mi"))
    return settle(api)


def run_stream(api: Api, count: int) -> PodCounts:
    """Create a pod every 2 seconds that ends after 8 to 20 seconds, and wait until all have ended."""
    chance = random.Random(SEED)
    begun = time.monotonic()
    for number in range(count):
        while time.monotonic() < begun + 2 * number:
            time.sleep(0.05)
        container = make_container(cpu=chance.randint(1, 4), memory="32Mi")
        create_pod(api, f"stream-{number}", {**container, "args": [str(chance.randint(8, 20))]})
    ended = lambda: not (counts := count_pods(api)).running + counts.pending  # noqa: E731
    until("all pods of the stream have ended", ended, detail=lambda: count_pods(api))
    return count_pods(api)


def run_in_turn(api: Api, *, deployment: bool) -> PodCounts:
    """Create pods one after the other, the last one as a pod or as a Deployment, and count them."""
    for number, (cpus, memory) in enumerate(((2, "48Mi"), (4, "48Mi"), (3, "48Mi"), (1, "128Mi"))):
        create_pod(api, f"turn-{number}", make_container(cpu=cpus, memory=memory))
        until("the kubelet has decided", lambda: not count_pods(api).pending, detail=lambda: count_pods(api))
    if deployment:
        return run_deployment(api, 1, cpu=2, memory="48Mi")
    create_pod(api, "turn-last", make_container(cpu=2, memory="48Mi"))
    return settle(api)


def count_pods(api: Api) -> PodCounts:
    phases: dict[str, int] = {}
    rejected = 0
    reasons = []
    for pod in api.items(PODS):
        status = pod["status"]
        if status.get("reason") == REASON:
            rejected += 1
            continue
        phase = "Running" if is_admitted(pod) else status["phase"]
        phases[phase] = phases.get(phase, 0) + 1
        if status["phase"] == "Failed":
            reasons.append(f"{pod['metadata']['name']}: {status.get('reason')} {status.get('message')}")
    return PodCounts(
        running=phases.get("Running", 0),
        succeeded=phases.get("Succeeded", 0),
        rejected=rejected,
        failed=phases.get("Failed", 0),
        pending=phases.get("Pending", 0),
        reasons=tuple(reasons),
    )


def clear(api: Api) -> None:
    """Delete all workloads, and wait until their pods are gone."""
    for deployment in api.items(DEPLOYMENTS):
        api.request("DELETE", f"{DEPLOYMENTS}/{deployment['metadata']['name']}")
    until("the Deployments are gone", lambda: not api.items(DEPLOYMENTS))

    def gone() -> bool:
        left = api.items(PODS)
        if any("deletionTimestamp" not in pod["metadata"] for pod in left):
            api.request("DELETE", PODS)
        return not left

    until("the pods are gone", gone, detail=lambda: count_pods(api))


def create_pod(api: Api, name: str, container: Document, annotations: dict[str, str] | None = None) -> None:
    pod = make_pod(name, container, schedulerName=_SCHEDULER)
    api.request("POST", PODS, {**pod, "metadata": {**pod["metadata"], "annotations": annotations or {}}})


def _deployment(replicas: int, container: Document) -> Document:
    labels = {"app": "workload"}
    spec = make_pod("workload", container, schedulerName=_SCHEDULER, restartPolicy="Always")["spec"]
    return {
        "metadata": {"name": "workload"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _watch(api: Api) -> PodCounts:
    """Count when the window is over; on a slow machine, when pods are decided on, unless they are rejected forever."""
    end = time.monotonic() + WINDOW

    def over() -> bool:
        return time.monotonic() > end and (count_pods(api).rejected > 0 or _all_decided(api))

    until("the kubelets have decided", over, detail=lambda: count_pods(api))
    return count_pods(api)


def settle(api: Api) -> PodCounts:
    """Wait until every pod is admitted, has ended, or was found unschedulable, and no pod has changed for a while.

    A pod that a scheduler has found unschedulable may be tried again a moment later.
    """
    seen: dict[str, Any] = {"versions": None, "since": 0.0}

    def settled() -> bool:
        pods = api.items(PODS)
        versions = [(pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for pod in pods]
        if versions != seen["versions"]:
            seen.update(versions=versions, since=time.monotonic())
        return all(map(_is_decided, pods)) and time.monotonic() - seen["since"] > QUIET

    until("the kubelets have decided", settled, detail=lambda: count_pods(api))
    return count_pods(api)


def _all_decided(api: Api) -> bool:
    return all(map(_is_decided, api.items(PODS)))


def _is_decided(pod: Document) -> bool:
    if pod["status"]["phase"] != "Pending" or is_admitted(pod):
        return True
    conditions = {each["type"]: each for each in pod["status"].get("conditions", ())}
    return conditions.get("PodScheduled", {}).get("reason") in {"Unschedulable", "SchedulingGated"}

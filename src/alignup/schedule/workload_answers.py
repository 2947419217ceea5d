"""Whole workloads: how many pods of an object fit together, on which nodes, and what the rest lacks.

All replicas of all templates are decided together, as a gang, since each takes room that another could use.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from alignup.kubernetes.manifests.workloads import Workload
from alignup.placement.cluster import Cluster
from alignup.placement.gang import MAX_STEPS, GangAnswer
from alignup.placement.shortage import describe_shortage

_MAX_NODES = 8  #: names in a sentence


class WorkloadPart(NamedTuple):
    """The replicas of one pod template."""

    label: str  #: which of several templates it is
    replicas: int
    fitting: int
    nodes: Mapping[str, int]  #: how many of them go to each node


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """The pods of one object that fit together."""

    name: str  #: such as ``Job ml/trainer``
    parts: tuple[WorkloadPart, ...]
    gang: GangAnswer
    shortage: str  #: why the rest does not fit; empty if everything fits
    claims: bool = False  #: whether the pods have claims, whose devices are judged for each pod alone

    @property
    def fits(self) -> bool:
        return self.gang.fits

    @property
    def sentence(self) -> str:
        replicas = sum(part.replicas for part in self.parts)
        fitting_count = sum(part.fitting for part in self.parts)
        several = [f"{part.label}: {part.fitting} of {part.replicas}" for part in self.parts if part.label]
        parts = f" ({', '.join(several)})" if len(several) > 1 else ""
        if self.fits:
            text = f"{self.name}: all {replicas} pods{parts} fit together: {self._show_nodes()}"
        else:
            text = f"{self.name}: {fitting_count} of {replicas} pods fit together{parts}; {self.shortage}"
        text += "; whether there are devices for the claims of all of them is not computed" if self.claims else ""
        return text if self.gang.proved else f"{text}; no more were found within {self.gang.steps} steps"

    def _show_nodes(self) -> str:
        counts: Counter[str] = Counter()
        for part in self.parts:
            counts.update(part.nodes)
        parts = [f"{count} on {node}" for node, count in sorted(counts.items())[:_MAX_NODES]]
        return ", ".join(parts) + (f" and on {len(counts) - _MAX_NODES} more nodes" if len(counts) > _MAX_NODES else "")

    def to_document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "fits": self.fits,
            "sentence": self.sentence,
            "shortage": self.shortage,
            "proved": self.gang.proved,
            "parts": [
                {"template": part.label, "pods": part.replicas, "fitting": part.fitting, "nodes": dict(part.nodes)}
                for part in self.parts
            ],
            "bindings": [{"pod": binding.pod.name, "node": binding.host} for binding in self.gang.bindings],
        }


def accept_for(cluster: Cluster, workloads: Sequence[Workload]) -> Sequence[Workload]:
    """Return *workloads* with the pod-level defaults of the API server, which is not older than any kubelet."""
    records = [record for host in cluster.hosts if (record := cluster.record(host))]
    if not records or any(record.model.settings.gates.on("PodLevelResourcesFixDefaulting") for record in records):
        return workloads
    return [workload.without_pod_level_fix() for workload in workloads]


def split_by_object(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Return the templates of each object together."""
    return [list(parts) for _, parts in groupby(workloads, lambda part: (part.kind, part.namespace, part.name))]


def ask_about_gang(
    cluster: Cluster,
    templates: Sequence[Workload],
    considered_nodes: Sequence[Collection[str]],
    *,
    max_steps: int = MAX_STEPS,
) -> WorkloadAnswer | None:
    """Ask where all replicas of an object go together; ``None`` if it has one, or one on each node.

    *considered_nodes* are the nodes that schedulers consider for the replicas of each of its *templates*.
    """
    first = templates[0]
    if sum(template.replicas for template in templates) < 2 or first.kind == "DaemonSet":
        return None
    members = [list(template.pods()) for template in templates]
    eligible = {pod.uid: nodes for pods, nodes in zip(members, considered_nodes, strict=True) for pod in pods}
    gang = cluster.feasible_gang(
        [pod for pods in members for pod in pods], eligible=lambda pod: eligible[pod.uid], max_steps=max_steps
    )
    hosts, parts = gang.hosts, []
    for template, pods in zip(templates, members, strict=True):
        nodes = Counter(hosts[pod.uid] for pod in pods if pod.uid in hosts)
        parts.append(WorkloadPart(template.template, template.replicas, nodes.total(), nodes))
    name = f"{first.kind} {first.namespace}/{first.name}"
    shortage = "" if gang.fits else describe_shortage(cluster, gang.verdicts[gang.rest[0].uid])
    claims = any(template.pod.uses_claims for template in templates)
    return WorkloadAnswer(name, tuple(parts), gang, shortage, claims)

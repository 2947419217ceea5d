"""TrainJobs of Kubeflow: their pods are described by another object, a training runtime.

The runtime has the template of a JobSet. The TrainJob changes the job of the trainer: the number of its pods, and the
resources of its container. Overrides of pod templates are not applied.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

KIND = "TrainJob"
_DEFAULT_RUNTIME = "ClusterTrainingRuntime"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"  #: label of a job: its part in the TrainJob
_TRAINER, _NODE = "trainer", "node"  #: the step with the trainer; the name of its job and container without the label


class RuntimeName(NamedTuple):
    kind: str
    namespace: str  #: empty: of the cluster
    name: str


def runtime_name(document: Mapping[str, Any]) -> RuntimeName:
    """Return the name of a runtime."""
    metadata, kind = _mapping(document, "metadata"), str(document.get("kind"))
    return RuntimeName(kind, _namespace(metadata, kind), str(metadata.get("name")))


def runtime_of(document: Mapping[str, Any]) -> RuntimeName:
    """Return the runtime that a TrainJob names."""
    reference = _mapping(_mapping(document, "spec"), "runtimeRef")
    kind = str(reference.get("kind") or _DEFAULT_RUNTIME)
    return RuntimeName(kind, _namespace(_mapping(document, "metadata"), kind), str(reference.get("name")))


def expand(document: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TrainJob with the pod templates of its runtime."""
    trainer = _mapping(_mapping(document, "spec"), _TRAINER)
    policy = _mapping(_mapping(runtime, "spec"), "mlPolicy")
    nodes = trainer.get("numNodes", policy.get("numNodes"))
    template = _mapping(_mapping(runtime, "spec"), "template")
    jobs = _mapping(template, "spec").get("replicatedJobs")
    replicated_jobs = [
        _with_trainer(job, nodes, trainer.get("resourcesPerNode")) if _runs_trainer(job) else job
        for job in (jobs if isinstance(jobs, list) else ())
    ]
    return {**document, "spec": {"template": {"spec": {"replicatedJobs": replicated_jobs}}}}


def _runs_trainer(job: object) -> bool:
    if not isinstance(job, Mapping):
        return False
    labels = _mapping(_mapping(_mapping(job, "template"), "metadata"), "labels")
    return labels.get(_STEP) == _TRAINER if _STEP in labels else job.get("name") == _NODE


def _with_trainer(job: Mapping[str, Any], nodes: object, resources: object) -> dict[str, Any]:
    template = _mapping(job, "template")
    spec = _mapping(template, "spec")
    if nodes is not None:
        spec = {**spec, "parallelism": nodes, "completions": nodes}
    inner = _mapping(spec, "template")
    containers = _mapping(inner, "spec").get("containers")
    if resources is not None and isinstance(containers, list):
        containers = [
            {**container, "resources": resources}
            if isinstance(container, Mapping) and container.get("name") == _NODE
            else container
            for container in containers
        ]
        spec = {**spec, "template": {**inner, "spec": {**_mapping(inner, "spec"), "containers": containers}}}
    return {**job, "template": {**template, "spec": spec}}


def _namespace(metadata: Mapping[str, Any], kind: str) -> str:
    return "" if kind == _DEFAULT_RUNTIME else str(metadata.get("namespace") or "default")


def _mapping(owner: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = owner.get(key)
    return value if isinstance(value, Mapping) else {}

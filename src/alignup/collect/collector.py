"""What is read from a cluster to explain the decision on one pod, in steps that may fail one by one.

:func:`plan` says which requests will be sent, and :func:`collect` sends them. Objects are decoded as structs of the few
fields that Alignup reads, and written from these: environment variables, commands, images, volumes, labels and other
annotations are never in an archive. A step without permission is a missing part, not an error.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.collect.collection import Collection, CollectionIndex, MissingPart, Part
from alignup.collect.reader_pod import Reader, read_log, run_reader, without_responses
from alignup.documents.codec import convert, decode, encode, to_builtins
from alignup.documents.host_state import HostStateObject, staleness
from alignup.documents.host_state.schema import NOTHING, HostLedgerDocument
from alignup.documents.host_state.writer import format_time
from alignup.documents.machines import machine_to_document
from alignup.kubernetes.api import NODES, PODS, WORKLOADS, ApiClient, Query, Resource
from alignup.kubernetes.api.claim_resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from alignup.kubernetes.api.configz import MAX_CONFIGZ
from alignup.kubernetes.api.errors import ApiError, ForbiddenError, NotFoundError
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.known_pods import kubelet_uid
from alignup.kubernetes.api.objects import ApiObject, ApiPod, ObjectMeta
from alignup.kubernetes.api.pods_with_volumes import PODS_WITH_VOLUMES, PodWithVolumes
from alignup.kubernetes.kubelet_files.ledger import export_ledger
from alignup.kubernetes.kubelet_files.state_files import dump_cpu_state, dump_device_state, dump_memory_state
from alignup.kubernetes.manifests.disruption import SAFE_TO_EVICT
from alignup.kubernetes.manifests.pod_decoder import ObjectPart, PodObject

LEFT_OUT = (
    "environment variables, commands, images, names and contents of volumes, labels of pods, annotations of others, "
    "and what device plugins set in containers"
)
_KEPT_ANNOTATIONS = ("alignup.dev/", "topology.alignup.dev/", SAFE_TO_EVICT)
#: Where a pod may be scheduled to, and whether it may be evicted: for plans.
_KEPT_SPEC = ("nodeName", "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulingGroup")
_KEPT_METADATA = ("creationTimestamp", "deletionTimestamp")
_SECRET_FIELDS = ("staticPodURL", "staticPodURLHeader")  #: of a KubeletConfiguration: these can have tokens

Parts = Mapping[str, bytes]
Report = Callable[[str], None]


class Event(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""


EVENTS = Resource(type=Event, kind="Event", plural="events", namespaced=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is collected about: a pod, and a node, most often its own."""

    pod: ApiPod
    node: str
    host_state: HostStateObject | None = None  #: ``None``: there is no usable one
    why_not: str = ""  #: why there is none
    reader: Reader | None = None  #: ``None``: no pod is created

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def uses_claims(self) -> bool:
        return bool(self.pod.spec.resource_claims or self.pod.status.extended_resource_claim_status)


class Step(NamedTuple):
    """A group of requests, its purpose, and the permission that it needs."""

    title: str
    requests: tuple[str, ...]
    needs: str
    run: Callable[[ApiClient, Subject, Report], Awaitable[Parts]]


class MissingObjectError(AlignError):
    """An object that should be there is not."""


async def find_host_state(client: ApiClient, node: str, *, now: float) -> tuple[HostStateObject | None, str]:
    """Return the usable HostState of a node, or ``None`` and the reason."""
    try:
        state = await client.find(HOST_STATES.at(node))
    except ForbiddenError:
        return None, f"{HOST_STATES.full_name} may not be read"
    except ApiError as error:
        return None, str(error)
    if state is None:
        return None, "no observer is installed"
    if not state.has_ledger:
        return None, "its observer does not know what the node holds"
    stale = staleness(state, now)
    return (None, stale) if stale else (state, "")


async def pods_of_workload(client: ApiClient, kind: str, namespace: str, name: str) -> list[ApiPod]:
    """Return the pods of a Deployment, a Job or the like; ``MissingObjectError`` if the workload does not exist."""
    workload = await client.find(WORKLOADS[kind].at(name, namespace=namespace))
    if workload is None:
        raise MissingObjectError(f"{kind.lower()} {name} not found in namespace {namespace}")
    selector = workload.spec.get("selector") or {}
    labels = selector if kind == "ReplicationController" else selector.get("matchLabels") or {}
    if not labels:
        raise MissingObjectError(f"{kind.lower()} {name} has no labels of pods; name one of its pods")
    query = Query(namespace=namespace, labels=",".join(f"{key}={value}" for key, value in labels.items()))
    return list((await client.list(PODS, query)).items)


def plan(subject: Subject) -> list[Step]:
    """Return the steps, in their order."""
    node, namespace = f"{NODES.path()}/{subject.node}", subject.namespace
    steps = [
        Step(f"node {subject.node}", (f"GET {node}",), "get nodes", _read_node),
        Step("configuration of the kubelet", (f"GET {node}/proxy/configz",), "get nodes/proxy", _read_configz),
        Step(
            "pods of the node",
            (f"GET {PODS.path()}?fieldSelector=spec.nodeName={subject.node}",),
            "list pods in all namespaces",
            _read_pods,
        ),
        Step(
            "events of the pod",
            (f"GET {EVENTS.path(namespace)}?fieldSelector=involvedObject.uid={subject.pod.metadata.uid}",),
            f"list events in namespace {namespace}",
            _read_events,
        ),
    ]
    if subject.uses_claims:
        resources = (DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES)
        requests = tuple(f"GET {resource.path()}" for resource in resources)
        needs = "list deviceclasses, resourceclaims, resourceclaimtemplates and resourceslices (resource.k8s.io)"
        steps.append(Step("claims and their devices", requests, needs, _read_claims))
    if subject.host_state is not None:
        request = f"GET {HOST_STATES.path()}/{subject.node}"
        steps.append(Step("machine and state of the kubelet", (request,), f"get {HOST_STATES.full_name}", _read_state))
    elif (reader := subject.reader) is not None:
        pods = PODS.path(reader.namespace)
        requests = (f"POST {pods}", f"GET {reader.path}", f"GET {reader.path}/log", f"DELETE {reader.path}")
        needs = f"create, get and delete pods and get pods/log in namespace {reader.namespace}"
        steps.append(Step("machine and state files of the kubelet", requests, needs, _run_reader))
    return steps


async def collect(client: ApiClient, subject: Subject, *, report: Report) -> Collection:
    """Carry out the plan; *report* gets a line about each step. What fails is missing in the result."""
    pod, status = subject.pod, subject.pod.status
    parts: dict[str, bytes] = {Part.POD: encode(pod_document(pod, with_status=True))}
    missing_inputs, notes = [], []
    for step in plan(subject):
        try:
            parts |= await step.run(client, subject, report)
        except AlignError as error:
            forbidden = isinstance(error, ForbiddenError)
            missing_inputs.append(MissingPart(step.title, str(error), step.needs if forbidden else ""))
            report(f"missing: {step.title}: {error}" + (f"; needs permission to {step.needs}" if forbidden else ""))
        else:
            report(f"collected {step.title}")
    if subject.host_state is None and subject.reader is None:
        missing_inputs.append(MissingPart("machine and state files of the kubelet", subject.why_not))
        report(f"missing: machine and state files of the kubelet: {subject.why_not}, and no reader is wanted")
    state = subject.host_state
    if state is not None:
        if Part.CONFIGURATION not in parts and state.configuration != NOTHING:
            parts[Part.CONFIGURATION] = bytes(state.configuration)
            notes.append("the configuration has only the fields in the HostState, which affect alignment")
        if Part.MACHINE in parts and (lost_cpus := decode(bytes(state.ledger), HostLedgerDocument).lost_cpus):
            notes.append(f"CPUs {lost_cpus}, which the kubelet has lost, count as shared")
    said = ": ".join(filter(None, (status.phase, status.reason, status.message)))
    index = CollectionIndex(
        collected_at=format_time(client.timing.time_of_day()),
        pod=pod.metadata.full_name,
        node=subject.node,
        kubelet_version=_kubelet_version(parts),
        reported=said,
        missing=tuple(missing_inputs),
        notes=tuple(notes),
    )
    return Collection(index, {name: parts[name] for name in Part if name in parts})


def pod_document(pod: ApiPod, *, with_status: bool = False) -> dict[str, Any]:
    """Return the manifest of a pod with the fields that affect alignment, and with the uid that the kubelet uses."""
    document = to_builtins(convert(to_builtins(pod), PodObject))
    metadata, spec, status = (document.setdefault(name, {}) for name in ("metadata", "spec", "status"))
    metadata.pop("labels", None)
    annotations = pod.metadata.annotations
    metadata["annotations"] = {name: annotations[name] for name in annotations if name.startswith(_KEPT_ANNOTATIONS)}
    metadata["uid"] = kubelet_uid(pod)
    whole = to_builtins(pod)
    metadata |= {name: whole["metadata"][name] for name in _KEPT_METADATA if name in whole["metadata"]}
    owners = [owner for owner in pod.metadata.owner_references if owner.controller]
    metadata["ownerReferences"] = to_builtins(owners)
    spec |= {name: whole["spec"][name] for name in _KEPT_SPEC if name in whole.get("spec", {})}
    if isinstance(pod, PodWithVolumes):
        spec["volumes"] = list(_kinds_of_volumes(pod))
    status["phase"] = pod.status.phase
    if with_status:
        status |= {"reason": pod.status.reason, "message": pod.status.message}
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, **document}


def _kinds_of_volumes(pod: PodWithVolumes) -> Iterator[dict[str, Any]]:
    """Yield the volumes that may be local, without their names."""
    for number, volume in enumerate(pod.spec.volumes):
        kind: dict[str, Any] = {}
        if volume.host_path is not None:
            kind = {"hostPath": {"path": ""}}
        elif volume.empty_dir is not None:
            kind = {"emptyDir": {"medium": volume.empty_dir.medium}}
        elif volume.persistent_volume_claim is not None or volume.ephemeral is not None:
            kind = {"persistentVolumeClaim": {"claimName": ""}}
        if kind:
            yield {"name": f"volume-{number}", **kind}


def _kubelet_version(parts: Parts) -> str:
    node = json.loads(parts.get(Part.NODE, b"{}"))
    version: str = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
    return version


async def _read_node(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    node = await client.get(NODES.at(subject.node))
    status = {
        "capacity": node.status.capacity,
        "allocatable": node.status.allocatable,
        "nodeInfo": {"kubeletVersion": node.status.node_info.kubelet_version},
    }
    document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.metadata.name, "labels": node.metadata.labels},
        "spec": to_builtins(node.spec),
        "status": status,
    }
    return {Part.NODE: encode(document)}


async def _read_configz(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    body = await client.get_raw(f"{NODES.at(subject.node).path}/proxy/configz", max_bytes=MAX_CONFIGZ)
    try:
        document = json.loads(body)
        configuration = document["kubeletconfig"]
        for field in _SECRET_FIELDS:
            configuration.pop(field, None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MissingObjectError("the kubelet's /configz has no kubeletconfig") from None
    return {Part.CONFIGURATION: encode(document)}


async def _read_pods(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    pods = (await client.list(PODS_WITH_VOLUMES, Query(fields=f"spec.nodeName={subject.node}"))).items
    reader = subject.reader.name if subject.reader else ""
    documents = [pod_document(pod) for pod in pods if pod.metadata.name != reader]
    return {Part.PODS: encode({"apiVersion": "v1", "kind": "List", "items": documents})}


async def _read_events(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    query = Query(namespace=subject.namespace, fields=f"involvedObject.uid={subject.pod.metadata.uid}")
    events = (await client.list(EVENTS, query)).items
    return {Part.EVENTS: _list_of(EVENTS, events)}


async def _read_claims(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    """Read the claims of the pod, the claims that hold devices, and the devices of the node."""
    pod = subject.pod
    templates = {claim.resource_claim_template_name for claim in pod.spec.resource_claims}
    names = {claim.resource_claim_name for claim in pod.spec.resource_claims}
    names |= {claim.resource_claim_name for claim in pod.status.resource_claim_statuses}
    if claim_status := pod.status.extended_resource_claim_status:
        names.add(claim_status.resource_claim_name)
    classes = (await client.list(DEVICE_CLASSES)).items
    claims = [
        claim
        for claim in (await client.list(RESOURCE_CLAIMS)).items
        if claim.status.allocation is not None
        or (claim.metadata.namespace == subject.namespace and claim.metadata.name in names)
    ]
    claim_names = [
        template
        for template in (await client.list(RESOURCE_CLAIM_TEMPLATES, Query(namespace=subject.namespace))).items
        if template.metadata.name in templates
    ]
    slices = [
        slice_ for slice_ in (await client.list(RESOURCE_SLICES)).items if slice_.spec.node_name in ("", subject.node)
    ]
    groups: tuple[tuple[Resource[Any], Sequence[ApiObject]], ...] = (
        (DEVICE_CLASSES, classes),
        (RESOURCE_CLAIM_TEMPLATES, claim_names),
        (RESOURCE_CLAIMS, claims),
        (RESOURCE_SLICES, slices),
    )
    items = [item for resource, objects in groups for item in _documents(resource, objects)]
    return {Part.CLAIMS: encode({"apiVersion": "v1", "kind": "List", "items": items})}


def _documents(resource: Resource[Any], objects: Sequence[ApiObject]) -> list[dict[str, Any]]:
    """Return *objects* without labels and annotations."""
    documents = []
    for document in map(to_builtins, objects):
        metadata = document.get("metadata", {})
        for name in ("labels", "annotations", "ownerReferences", "resourceVersion"):
            metadata.pop(name, None)
        documents.append({"apiVersion": resource.api_version, "kind": resource.kind, **document})
    return documents


def _list_of(resource: Resource[Any], objects: Sequence[ApiObject]) -> bytes:
    return encode({"apiVersion": "v1", "kind": "List", "items": _documents(resource, objects)})


async def _read_state(client: ApiClient, subject: Subject, _report: Report) -> Parts:
    """Write the HostState as the files that a kubelet has."""
    if subject.host_state is None:
        raise MissingObjectError("there is no HostState")
    node = await _find_version(client, subject.node)
    report = host_state_reader().read(subject.host_state, kubelet_version=node)
    host = Host(report.machine, report.settings)
    host.ledger = report.ledger
    files, gates = export_ledger(host), report.settings.gates
    parts: dict[str, bytes] = {Part.MACHINE: encode(machine_to_document(report.machine))}
    ranges = {Part.SUBUID: "subuid", Part.SUBGID: "subgid"}
    for part, name in ranges.items():
        if name in subject.host_state.sub_ids:
            parts[part] = f"kubelet:{subject.host_state.sub_ids[name]}\n".encode()
    if files.cpu is not None:
        parts[Part.CPU_STATE] = dump_cpu_state(files.cpu, gates=gates)
    if files.memory is not None:
        parts[Part.MEMORY_STATE] = dump_memory_state(files.memory, gates=gates)
    if files.devices is not None:
        parts[Part.DEVICE_STATE] = dump_device_state(files.devices)
    return parts


async def _find_version(client: ApiClient, node: str) -> str:
    try:
        return (await client.get(NODES.at(node))).status.node_info.kubelet_version
    except (ForbiddenError, NotFoundError):
        return ""


async def _run_reader(client: ApiClient, subject: Subject, report: Report) -> Parts:
    if subject.reader is None:
        raise MissingObjectError("there is no reader")
    parts = read_log(await run_reader(client, subject.reader, report))
    if Part.DEVICE_STATE in parts:
        parts[Part.DEVICE_STATE] = without_responses(parts[Part.DEVICE_STATE])
    return parts

"""Pod objects: the one decoder that makes a :class:`Pod` of a manifest, an API object or a scheduler's request.

The structs have the fields of a Pod object that affect alignment. JSON is decoded straight into them, and
:func:`pod_from` makes the pod. YAML, and JSON that is unusual or invalid, is read field by field into the same structs,
so that a :class:`PodError` names everything that is wrong. Only types and quantities are checked here;
``align.workload.validation`` decides what a well-formed pod may ask for.

The spelling of a number shows in a quantity (``1e3`` prints as ``1e3``, ``1000`` as ``1k``), so texts keep it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, PodError
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, PodClaim, QoS, Resources
from alignup.align.workload.validation import RESTART_POLICIES
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import NumberLiteral
from alignup.kubernetes.manifests.object_reader import ObjectReader, parse_amounts

#: Resource → its amount: a string or a number, or a quantity where a reader has checked it already.
ResourceAmounts = dict[str, Any]
Labels = dict[str, str]
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class ObjectPart(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """The base of all parts of objects; they have no cycles, so the garbage collector need not track them."""


class NamedItem(ObjectPart, frozen=True):
    """An element of a list. Only its name matters."""

    name: str = ""


class UsedClaim(NamedItem, frozen=True):
    """A claim of the pod that a container uses, or one request of it."""

    request: str = ""

    @property
    def reference(self) -> str:
        """The claim as ``Resources`` has it; a name with ``/``, which no claim has, stays invalid."""
        return f"{self.name}/{self.request}" if self.request or "/" in self.name else self.name


class ResourceRequirements(ObjectPart, frozen=True):
    requests: ResourceAmounts = {}
    limits: ResourceAmounts = {}
    claims: tuple[UsedClaim, ...] = ()


class ContainerSpec(ObjectPart, frozen=True):
    name: str = ""
    restart_policy: str | None = None  #: Always: an init container that is a sidecar
    resources: ResourceRequirements = ResourceRequirements()


class PodMetadata(ObjectPart, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Labels = {}
    annotations: Labels = {}


class PodClaimSpec(ObjectPart, frozen=True):
    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(ObjectPart, frozen=True):
    init_containers: tuple[ContainerSpec, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceAmounts = {}
    resource_claims: tuple[PodClaimSpec, ...] = ()
    priority: Int32 | None = None
    os: NamedItem | None = None


class ReportedContainer(ObjectPart, frozen=True):
    """The allocated and the actual resources of a container, as the kubelet reports them."""

    name: str = ""
    allocated_resources: ResourceAmounts = {}
    resources: ResourceRequirements | None = None


class PodCondition(ObjectPart, frozen=True):
    type: str = ""
    reason: str = ""


class PodClaimStatus(ObjectPart, frozen=True):
    """The ResourceClaim that was created from a template for a claim of the pod."""

    name: str = ""
    resource_claim_name: str = ""


class ClaimedRequest(ObjectPart, frozen=True):
    """An extended resource of a container that a ResourceClaim serves."""

    container_name: str = ""
    resource_name: str = ""


class ExtendedResourceClaim(ObjectPart, frozen=True):
    resource_claim_name: str = ""
    request_mappings: tuple[ClaimedRequest, ...] = ()


class PodStatus(ObjectPart, frozen=True):
    qos_class: str = ""
    init_container_statuses: tuple[ReportedContainer, ...] = ()
    container_statuses: tuple[ReportedContainer, ...] = ()
    conditions: tuple[PodCondition, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaim | None = None


class PodObject(ObjectPart, frozen=True):
    """A Pod object, with the fields that affect alignment."""

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class _PodManifest(PodObject, frozen=True, kw_only=True):
    api_version: Literal["v1"]
    kind: Literal["Pod"]


_DECODER = msgspec.json.Decoder(_PodManifest, float_hook=NumberLiteral)


def pod_from(pod: PodObject) -> Pod:
    """Return the pod in a decoded object; :class:`PodError` names every invalid field."""
    try:
        return _pod(pod)
    except ValueError:  # a quantity or a QoS class
        return read_pod({"apiVersion": "v1", "kind": "Pod", **msgspec.to_builtins(pod)})


def read_json_pod(content: bytes) -> Pod | None:
    """Read a pod in JSON quickly; ``None``: :func:`read_pod_text` must read it, since it is unusual or invalid."""
    try:
        content.decode()  # fields that are skipped must be text, too
        return _pod(_DECODER.decode(content))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def read_pod_text(text: str | bytes) -> Pod:
    """Like :func:`read_pod`, for a YAML or JSON text; :class:`DocumentError` if it is not one document."""
    parsed_documents = documents.read(text)
    if len(parsed_documents) != 1:
        raise DocumentError(f"expected one document, not {len(parsed_documents) or 'none'}", line=1)
    return read_pod(parsed_documents[0].value)


def read_pod(document: Mapping[str, Any]) -> Pod:
    """Return the pod in a decoded document; :class:`PodError` names every invalid field."""
    top = ObjectReader.of(document)
    problems = top.diagnostics.problems
    kind, version = read_type(top)
    if not problems and (kind, version) != ("Pod", "v1"):
        wrong = "kind" if kind != "Pod" else "apiVersion"
        top.error(wrong, f"no kind {quote(kind)} is registered for version {quote(version)}")
    pod = PodObject() if problems else top.read_struct(PodObject)
    if pod.status.qos_class:
        top.child("status").choice("qosClass", QoS)
    if problems:
        raise PodError(problems)
    return _pod(pod)


def read_type(top: ObjectReader) -> tuple[str, str]:
    """Return the kind and apiVersion of an object; the first problem is recorded."""
    kind = "" if top.diagnostics.problems else top.required("kind")
    return kind, "" if top.diagnostics.problems else top.required("apiVersion")


def pod_to_dict(pod: Pod) -> dict[str, Any]:
    """Return the Pod object that is read as *pod*, without empty fields."""
    metadata = _present(
        name=pod.name, namespace=pod.namespace, uid=pod.uid, labels=dict(pod.labels), annotations=dict(pod.annotations)
    )
    spec = _present(
        initContainers=list(map(_container_to_dict, pod.init)),
        containers=list(map(_container_to_dict, pod.containers)),
        resources=_resources_to_dict(pod.resources),
        overhead=amounts_to_dict(pod.overhead),
        resourceClaims=[
            _present(name=claim.name, resourceClaimTemplateName=claim.template)
            if claim.template
            else _present(name=claim.name, resourceClaimName=claim.claim)
            for claim in pod.claims
        ],
        priority=pod.priority,
        os=_present(name=pod.os),
    )
    statuses = [
        _present(
            name=name,
            allocatedResources=amounts_to_dict(status.allocated),
            resources=_present(requests=amounts_to_dict(status.actual)),
        )
        for name, status in pod.statuses.items()
    ]
    resize = [{"type": "PodResizePending", "reason": "Infeasible"}] if pod.resize_infeasible else []
    created_claims = [claim for claim in pod.claims if claim.template and claim.claim]
    mappings = [{"containerName": container, "resourceName": name} for container, name in pod.claimed_requests]
    status = _present(
        qosClass=str(pod.recorded_qos or ""),
        conditions=resize,
        containerStatuses=statuses,
        resourceClaimStatuses=[{"name": claim.name, "resourceClaimName": claim.claim} for claim in created_claims],
        extendedResourceClaimStatus=_present(resourceClaimName=pod.extended_claim, requestMappings=mappings),
    )
    return _present(apiVersion="v1", kind="Pod", metadata=metadata, spec=spec, status=status)


def amounts_to_dict(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _pod(pod: PodObject) -> Pod:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    statuses = (*status.init_container_statuses, *status.container_statuses)
    resize = next((condition for condition in status.conditions if condition.type == "PodResizePending"), None)
    claim = status.extended_resource_claim_status
    return Pod(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        labels=metadata.labels,
        annotations=metadata.annotations,
        init=tuple(map(_container, spec.init_containers)),
        containers=tuple(map(_container, spec.containers)),
        resources=_resources(spec.resources),
        overhead=parse_amounts(spec.overhead),
        claims=_claims(spec, status) if spec.resource_claims else (),
        claimed_requests=_claimed_requests(claim) if claim else (),
        extended_claim=claim.resource_claim_name if claim else "",
        priority=spec.priority,
        os=spec.os.name if spec.os else "",
        recorded_qos=QoS(status.qos_class) if status.qos_class else None,
        statuses={
            container.name: ContainerStatus(parse_amounts(container.allocated_resources), actual)
            for container in statuses
            if (actual := _resources(container.resources).requests) or container.allocated_resources
        },
        resize_infeasible=resize is not None and resize.reason == "Infeasible",
    )


def _claims(spec: PodSpec, status: PodStatus) -> tuple[PodClaim, ...]:
    created_claims = {claim.name: claim.resource_claim_name for claim in status.resource_claim_statuses}
    return tuple(
        PodClaim(
            claim.name,
            claim.resource_claim_name or created_claims.get(claim.name, ""),
            claim.resource_claim_template_name,
        )
        for claim in spec.resource_claims
    )


def _claimed_requests(claim: ExtendedResourceClaim) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({(mapping.container_name, mapping.resource_name) for mapping in claim.request_mappings}))


def _container(container: ContainerSpec) -> Container:
    policy = container.restart_policy
    return Container(
        container.name,
        _resources(container.resources),
        policy == "Always",
        None if policy is None or policy in RESTART_POLICIES else policy,
    )


def _resources(resources: ResourceRequirements | None) -> Resources:
    if resources is None:
        return Resources()
    claims = tuple([claim.reference for claim in resources.claims])
    return Resources(parse_amounts(resources.requests), parse_amounts(resources.limits), claims)


def _container_to_dict(container: Container) -> dict[str, Any]:
    policy = "Always" if container.restartable else container.unknown_restart_policy
    fields = _present(name=container.name, resources=_resources_to_dict(container.resources))
    return fields if policy is None else {**fields, "restartPolicy": policy}


def _used_claim_to_dict(name: str, _separator: str, request: str) -> dict[str, str]:
    return {"name": name, "request": request} if request else {"name": name}


def _resources_to_dict(resources: Resources) -> dict[str, Any]:
    return _present(
        requests=amounts_to_dict(resources.requests),
        limits=amounts_to_dict(resources.limits),
        claims=[_used_claim_to_dict(*claim.partition("/")) for claim in resources.claims],
    )


def _present(**fields: object) -> dict[str, Any]:
    """Return the fields that are not empty; 0 is not."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}

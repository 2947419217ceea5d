"""A pod as a JSON document: what ``align`` needs of it, not its manifest. Fields with default values are left out."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, PodClaim, QoS, Resources
from alignup.documents.codec import Document, build


class QuantityDocument(Document, frozen=True):
    """A quantity whose text reads back as a different one.

    ``1.5Gi`` prints as ``1536Mi``: the memory provider accepts the second and rejects the first.
    """

    unscaled: str  #: hexadecimal, since Python limits the number of decimal digits
    power: int
    format: QuantityFormat
    dec: bool
    text: str | None
    exact: bool = False


AmountsDocument = dict[str, str | QuantityDocument]
#: container → resource → what the device plugin returned for the devices
PodGrants = Mapping[str, Mapping[str, Mapping[str, Any]]]


class ContainerDocument(Document, frozen=True, omit_defaults=True):
    name: str
    requests: AmountsDocument = {}
    limits: AmountsDocument = {}
    claims: tuple[str, ...] = ()
    restartable: bool = False


class ContainerStatusDocument(Document, frozen=True):
    allocated: AmountsDocument
    actual: AmountsDocument


class PodClaimDocument(Document, frozen=True, omit_defaults=True):
    name: str
    claim: str = ""
    template: str = ""


class PodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    namespace: str
    uid: str
    init: list[ContainerDocument] = []
    containers: list[ContainerDocument] = []
    requests: AmountsDocument = {}
    limits: AmountsDocument = {}
    claims: tuple[str, ...] = ()
    overhead: AmountsDocument = {}
    pod_claims: tuple[PodClaimDocument, ...] = ()
    claimed_requests: tuple[tuple[str, str], ...] = ()
    extended_claim: str = ""
    class_resources: tuple[str, ...] = ()
    qos: QoS | None = None
    statuses: dict[str, ContainerStatusDocument] = {}
    resize_infeasible: bool = False
    priority: int | None = None
    os: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


#: Every field: equal quantities can have different formats.
_QUANTITY_FIELDS = attrgetter("unscaled", "power", "format", "dec", "text", "exact")


def pod_document(pod: Pod) -> PodDocument:
    return build(
        PodDocument,
        pod,
        **_resource_documents(pod.resources),
        **{
            kind: [
                build(ContainerDocument, container, **_resource_documents(container.resources))
                for container in containers
            ]
            for kind, containers in (("init", pod.init), ("containers", pod.containers))
        },
        overhead=_amounts_document(pod.overhead),
        pod_claims=tuple([build(PodClaimDocument, claim) for claim in pod.claims]),
        qos=pod.recorded_qos,
        statuses={
            name: ContainerStatusDocument(_amounts_document(status.allocated), _amounts_document(status.actual))
            for name, status in pod.statuses.items()
        },
    )


def read_pod(document: PodDocument) -> Pod:
    """Return the pod; ``ValueError`` if an amount is not a quantity."""
    return build(
        Pod,
        document,
        init=tuple(map(_container, document.init)),
        containers=tuple(map(_container, document.containers)),
        resources=_resources(document),
        overhead=_amounts(document.overhead),
        claims=tuple([build(PodClaim, claim) for claim in document.pod_claims]),
        recorded_qos=document.qos,
        statuses={
            name: ContainerStatus(_amounts(status.allocated), _amounts(status.actual))
            for name, status in document.statuses.items()
        },
    )


def _resource_documents(resources: Resources) -> dict[str, Any]:
    requests, limits = _amounts_document(resources.requests), _amounts_document(resources.limits)
    return {"requests": requests, "limits": limits, "claims": resources.claims}


def _container(document: ContainerDocument) -> Container:
    return build(Container, document, resources=_resources(document), unknown_restart_policy=None)


def _resources(document: PodDocument | ContainerDocument) -> Resources:
    return Resources(_amounts(document.requests), _amounts(document.limits), document.claims)


def _amounts_document(amounts: Amounts) -> AmountsDocument:
    documents: AmountsDocument = {}
    for name, amount in amounts.items():
        # Outside these bounds the text can have any length.
        short = -9 <= amount.power <= 18 and amount.unscaled.bit_length() <= 128
        if short and _QUANTITY_FIELDS(Quantity.parse(str(amount))) == _QUANTITY_FIELDS(amount):
            documents[name] = str(amount)
        else:
            documents[name] = build(QuantityDocument, amount, unscaled=hex(amount.unscaled))
    return documents


def _amounts(document: AmountsDocument) -> dict[str, Quantity]:
    return {
        name: Quantity.parse(amount)
        if isinstance(amount, str)
        else build(Quantity, amount, unscaled=int(amount.unscaled, 16), other_form=None)
        for name, amount in document.items()
    }

"""Objects of Dynamic Resource Allocation: ResourceSlices, ResourceClaims, their templates, and DeviceClasses.

The structs have the fields that affect which devices a claim gets. JSON of an API server is decoded straight into them;
documents of manifests are read field by field, so that every problem has its line. ``read_objects`` reads both ``v1``
and the beta versions, whose requests have the fields of ``exactly`` themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from alignup.align.bits import quote
from alignup.align.claims.resource_claims import (
    AllocatedDevice,
    AttributeValue,
    Claim,
    ClaimObjects,
    ClaimRequest,
    DeviceClass,
    DeviceId,
    DeviceTaint,
    DeviceToleration,
    MatchAttribute,
    Slice,
    SliceDevice,
)
from alignup.align.errors import OWN_LIMIT, LocatedProblem, ManifestError, Problem, ProblemKind, QuantityError
from alignup.kubernetes.manifests.node_selectors import NodeSelector
from alignup.kubernetes.manifests.object_reader import ObjectReader, parse_amounts
from alignup.kubernetes.manifests.pod_decoder import ObjectPart, PodMetadata

if TYPE_CHECKING:
    from alignup.kubernetes.manifests.workloads import ObjectLocation

MAX_DEVICES = 100_000  #: in all slices of an input


class CelSelector(ObjectPart, frozen=True):
    expression: str = ""


class SelectorSpec(ObjectPart, frozen=True):
    cel: CelSelector = CelSelector()


class DeviceTolerationSpec(ObjectPart, frozen=True):
    key: str = ""
    operator: str = ""  #: Exists, Equal; empty: Equal
    value: str = ""
    effect: str = ""


class RequestSpec(ObjectPart, frozen=True):
    """A request for devices of one class, or one alternative of a request."""

    name: str = ""  #: of an alternative
    device_class_name: str = ""
    selectors: tuple[SelectorSpec, ...] = ()
    allocation_mode: str = ""  #: ExactCount, All; empty: ExactCount
    count: int | None = None
    admin_access: bool = False
    tolerations: tuple[DeviceTolerationSpec, ...] = ()
    capacity: Any = None


class NamedRequest(RequestSpec, frozen=True):
    exactly: RequestSpec | None = None
    first_available: tuple[RequestSpec, ...] = ()


class ConstraintSpec(ObjectPart, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str = ""


class DeviceClaimSpec(ObjectPart, frozen=True):
    requests: tuple[NamedRequest, ...] = ()
    constraints: tuple[ConstraintSpec, ...] = ()


class ClaimSpec(ObjectPart, frozen=True):
    devices: DeviceClaimSpec = DeviceClaimSpec()


class DeviceResult(ObjectPart, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class AllocatedDevices(ObjectPart, frozen=True):
    results: tuple[DeviceResult, ...] = ()


class Allocation(ObjectPart, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class Consumer(ObjectPart, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(ObjectPart, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ClaimMetadata(PodMetadata, frozen=True):
    resource_version: str = ""
    deletion_timestamp: str | None = None


class ResourceClaim(ObjectPart, frozen=True):
    metadata: ClaimMetadata = ClaimMetadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class TemplateSpec(ObjectPart, frozen=True):
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(ObjectPart, frozen=True):
    metadata: ClaimMetadata = ClaimMetadata()
    spec: TemplateSpec = TemplateSpec()


class DeviceClassSpec(ObjectPart, frozen=True):
    selectors: tuple[SelectorSpec, ...] = ()
    extended_resource_name: str = ""


class DeviceClassObject(ObjectPart, frozen=True):
    metadata: ClaimMetadata = ClaimMetadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class AttributeSpec(ObjectPart, frozen=True):
    """The value of an attribute: exactly one of these."""

    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None
    numbers: tuple[int, ...] = msgspec.field(name="ints", default=())
    strings: tuple[str, ...] = ()


class CapacitySpec(ObjectPart, frozen=True):
    value: Any = None


class DeviceTaintSpec(ObjectPart, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


Attributes = dict[str, AttributeSpec]
Capacities = dict[str, CapacitySpec]


class BasicDevice(ObjectPart, frozen=True):
    attributes: Attributes = {}
    capacity: Capacities = {}


class SliceDeviceSpec(BasicDevice, frozen=True):
    name: str = ""
    basic: BasicDevice | None = None  #: of v1beta1, which has the fields there
    node_name: str = ""
    node_selector: NodeSelector | None = None
    taints: tuple[DeviceTaintSpec, ...] = ()
    allow_multiple_allocations: bool = False
    consumes_counters: Any = None


class PoolSpec(ObjectPart, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(ObjectPart, frozen=True):
    driver: str = ""
    pool: PoolSpec = PoolSpec()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[SliceDeviceSpec, ...] = ()


class ResourceSlice(ObjectPart, frozen=True):
    metadata: ClaimMetadata = ClaimMetadata()
    spec: SliceSpec = SliceSpec()


def claim_from(claim: ResourceClaim) -> Claim:
    status, metadata = claim.status, claim.metadata
    allocation = status.allocation
    results = allocation.devices.results if allocation else ()
    allocated_devices = tuple(
        AllocatedDevice(
            result.request, DeviceId(result.driver, result.pool, result.device), admin_access=result.admin_access
        )
        for result in results
    )
    return replace(
        _claim(metadata, claim.spec),
        uid=metadata.uid,
        allocated=allocated_devices if allocation else None,
        host=_only_host(allocation.node_selector) if allocation else "",
        selector=allocation.node_selector if allocation else None,
        reserved_for=frozenset(consumer.uid for consumer in status.reserved_for if consumer.resource == "pods"),
    )


def template_from(template: ResourceClaimTemplate) -> Claim:
    """Return the claim that is made from a template, with the name of the template."""
    return _claim(template.metadata, template.spec.spec)


def device_class_from(device_class: DeviceClassObject) -> DeviceClass:
    spec = device_class.spec
    return DeviceClass(device_class.metadata.name, _expressions(spec.selectors), spec.extended_resource_name)


def slices_from(slice_: ResourceSlice) -> tuple[Slice, ...]:
    """Return a slice; one whose devices name or select their nodes themselves, as one part for each selection.

    ``QuantityError`` if a capacity is not a quantity.
    """
    spec = slice_.spec
    whole = Slice(
        slice_.metadata.name,
        spec.driver,
        spec.pool.name,
        spec.pool.generation,
        spec.pool.resource_slice_count,
        host=spec.node_name,
        selector=spec.node_selector,
        devices=tuple(_device(device, spec) for device in spec.devices),
    )
    if not spec.per_device_node_selection:
        return (whole,)
    parts: dict[tuple[str, NodeSelector | None], list[SliceDevice]] = {}
    for device, api_device in zip(whole.devices, spec.devices, strict=True):
        parts.setdefault((api_device.node_name, api_device.node_selector), []).append(device)
    return tuple(
        replace(whole, host=host, selector=selector, devices=tuple(devices))
        for (host, selector), devices in parts.items()
    )


def _claim(metadata: PodMetadata, spec: ClaimSpec) -> Claim:
    return Claim(
        name=metadata.name,
        namespace=metadata.namespace or "default",
        requests=tuple(map(_alternatives, spec.devices.requests)),
        constraints=tuple(
            MatchAttribute(constraint.match_attribute, frozenset(constraint.requests))
            for constraint in spec.devices.constraints
            if constraint.match_attribute
        ),
    )


def _alternatives(request: NamedRequest) -> tuple[ClaimRequest, ...]:
    if request.first_available:
        return tuple(
            _request(alternative, f"{request.name}/{alternative.name}") for alternative in request.first_available
        )
    return (_request(request.exactly or request, request.name),)


def _request(request: RequestSpec, name: str) -> ClaimRequest:
    return ClaimRequest(
        name,
        request.device_class_name,
        None if request.allocation_mode == "All" else 1 if request.count is None else request.count,
        _expressions(request.selectors),
        request.admin_access,
        tuple(
            DeviceToleration(
                toleration.key, None if toleration.operator == "Exists" else toleration.value, toleration.effect
            )
            for toleration in request.tolerations
        ),
        request.capacity is not None,
    )


def _expressions(selectors: Iterable[SelectorSpec]) -> tuple[str, ...]:
    return tuple(selector.cel.expression for selector in selectors if selector.cel.expression)


def _device(device: SliceDeviceSpec, spec: SliceSpec) -> SliceDevice:
    api_device = device.basic or device
    values = {_qualified(name, spec.driver): value for name, value in api_device.attributes.items()}
    capacity = parse_amounts({name: amount.value for name, amount in api_device.capacity.items()})
    return SliceDevice(
        DeviceId(spec.driver, spec.pool.name, device.name),
        {name: _attribute(value) for name, value in values.items()},
        frozenset(name for name, value in values.items() if value.version is not None),
        {_qualified(name, spec.driver): amount for name, amount in capacity.items()},
        taints=tuple(
            DeviceTaint(taint.key, taint.value, taint.effect) for taint in device.taints if taint.effect != "None"
        ),
        shared=device.allow_multiple_allocations,
        counted=device.consumes_counters is not None,
    )


def _capacity_problems(spec: SliceSpec) -> Iterator[Problem]:
    for index, device in enumerate(spec.devices):
        for name, amount in (device.basic or device).capacity.items():
            try:
                parse_amounts({name: amount.value})
            except QuantityError as error:
                yield Problem(f"spec.devices[{index}].capacity[{name}].value", error.message, ProblemKind.QUANTITY)


def _qualified(name: str, driver: str) -> str:
    """Return the qualified name of an attribute or capacity: without a domain, it is the driver's own."""
    return name if "/" in name else f"{driver}/{name}"


def _attribute(value: AttributeSpec) -> AttributeValue:
    if value.numbers or value.strings:
        return value.numbers or value.strings
    values = (value.number, value.flag, value.string, value.version)
    return next((attribute for attribute in values if attribute is not None), "")


def _only_host(selector: NodeSelector | None) -> str:
    """Return the one host that a node selector of an allocation names; empty if it selects others."""
    terms = selector.node_selector_terms if selector else ()
    requirements = [requirement for term in terms for requirement in (*term.match_fields, *term.match_expressions)]
    name_requirements = [requirement for requirement in requirements if requirement.key == "metadata.name"]
    return (
        name_requirements[0].values[0]
        if len(terms) == 1 and len(name_requirements) == 1 and len(name_requirements[0].values) == 1
        else ""
    )


_Object = TypeVar("_Object", bound=ObjectPart)


@dataclass(slots=True)
class ReadClaims:
    """Objects of Dynamic Resource Allocation from files."""

    objects: ClaimObjects = field(default_factory=ClaimObjects)
    slices: tuple[Slice, ...] = ()
    notes: tuple[str, ...] = ()  #: likely mistakes


def read_objects(places: "Iterable[ObjectLocation]") -> ReadClaims:
    """Read documents of the kinds in ``CLAIM_KINDS``; :class:`ManifestError` lists every problem."""
    reader = _Reader()
    for location in places:
        reader.add(location)
    return reader.result()


class _Reader:
    def __init__(self) -> None:
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[tuple[str, str], Claim] = {}
        self._templates: dict[tuple[str, str], Claim] = {}
        self._slices: list[Slice] = []
        self._problems: list[LocatedProblem] = []
        self._devices = 0

    def add(self, location: "ObjectLocation") -> None:
        top = ObjectReader.of(location.part)
        match location.part.get("kind"):
            case "ResourceSlice":
                if (slice_ := self._read(location, top, ResourceSlice)) is not None:
                    self._add_slices(location, slice_)
            case "ResourceClaim":
                if (claim := self._read(location, top, ResourceClaim)) is not None:
                    self._add(location, self._claims, claim_from(claim))
            case "ResourceClaimTemplate":
                if (template := self._read(location, top, ResourceClaimTemplate)) is not None:
                    self._add(location, self._templates, template_from(template))
            case _:
                if (device_class := self._read(location, top, DeviceClassObject)) is not None:
                    self._classes[device_class.metadata.name] = device_class_from(device_class)

    def result(self) -> ReadClaims:
        if self._problems:
            raise ManifestError(self._problems)
        return ReadClaims(
            ClaimObjects(self._classes, self._claims, self._templates), tuple(self._slices), tuple(self._notes())
        )

    def _read(self, location: "ObjectLocation", top: ObjectReader, type_: type[_Object]) -> _Object | None:
        object_ = top.read_struct(type_)
        if not getattr(object_, "metadata", PodMetadata()).name:
            top.child("metadata").error("name", "Required value")
        self._refuse(location, top.diagnostics.problems)
        return None if top.diagnostics.problems else object_

    def _refuse(self, location: "ObjectLocation", problems: Iterable[Problem]) -> None:
        from alignup.kubernetes.manifests.workloads import locate_problem  # noqa: PLC0415 - 1 MB, not for observers

        self._problems += [locate_problem(problem, location) for problem in problems]

    def _add(self, location: "ObjectLocation", claims: dict[tuple[str, str], Claim], claim: Claim) -> None:
        for index, alternatives in enumerate(claim.requests):
            for request in alternatives:
                if not request.device_class:
                    path = f"spec.devices.requests[{index}]"
                    message = "Required value: name the DeviceClass in exactly.deviceClassName"
                    self._refuse(location, [Problem(path, message)])
        claims[claim.namespace, claim.name] = claim

    def _add_slices(self, location: "ObjectLocation", slice_: ResourceSlice) -> None:
        for name, value in (("driver", slice_.spec.driver), ("pool.name", slice_.spec.pool.name)):
            if not value:
                self._refuse(location, [Problem(f"spec.{name}", "Required value")])
        self._devices += len(slice_.spec.devices)
        if self._devices > MAX_DEVICES:
            message = f"slices with more than {MAX_DEVICES} devices {OWN_LIMIT}"
            self._refuse(location, [Problem("spec.devices", message)])
            raise ManifestError(self._problems)
        wrong = list(_capacity_problems(slice_.spec))
        self._refuse(location, wrong)
        self._slices += () if wrong else slices_from(slice_)

    def _notes(self) -> Iterable[str]:
        holders: dict[DeviceId, list[str]] = {}
        for claim in self._claims.values():
            for device in claim.allocated or ():
                holders.setdefault(device.id, []).append(claim.title)
        for id_, claims in holders.items():
            if len(set(claims)) > 1:
                claim_names = " and ".join(sorted(set(claims)))
                yield f"device {id_} is allocated to {claim_names}; only a device that can be shared has several claims"
        drivers = {slice_.driver for slice_ in self._slices}
        if drivers:
            for driver in sorted({id_.driver for id_ in holders} - drivers):
                yield f"driver {driver} has no ResourceSlice here: the devices of its claims are not known"
        for title, device_class in sorted(self._missing_classes()):
            yield f"{title} names DeviceClass {quote(device_class)}, which is not given"

    def _missing_classes(self) -> set[tuple[str, str]]:
        return {
            (claim.title, request.device_class)
            for claim in (*self._claims.values(), *self._templates.values())
            for alternatives in claim.requests
            for request in alternatives
            if claim.allocated is None and request.device_class not in self._classes
        }

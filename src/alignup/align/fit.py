"""Whether a host has room for a pod at all: what it asks for against what is allocatable and not yet used.

This is the last question of an admission, after alignment. It knows totals only: thousandths of a CPU, bytes, pieces,
the number of pods. A host keeps one :class:`UsedResources` and changes it pod by pod, so that the answer never depends on how
many pods run.

The surprising rule: an extended resource that the host has never heard of is not held against a pod, while one it has
none of is. Kubernetes lets the cluster's scheduler answer for the former.

The kubelet makes room for a critical pod by evicting others. Nothing is evicted here: such a pod is refused like any
other, and only where even evicting would not help is it refused in the words the kubelet has for that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Pod, demand, names
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.align.workload.validation import SOURCE_ANNOTATION

PODS = "pods"  #: the host's limit on how many pods it runs, a resource like any other here

_OS = "linux"
_OS_LABEL = "kubernetes.io/os"
_MIRROR = "kubernetes.io/config.mirror"  # marks what a kubelet tells the API server about a static pod
_CRITICAL = 2_000_000_000  # the lowest priority of Kubernetes' own components

_NOTHING_TO_EVICT = (
    "Unexpected error while attempting to recover from admission failure: preemption: "
    "error finding a set of pods to preempt: no set of running pods found to reclaim resources: "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAllocatable:
    """What a host offers its pods together."""

    milli_cpu: int = 0
    memory: int = 0
    ephemeral_storage: int = 0
    pods: int = 0
    scalars: Mapping[str, int] = field(default_factory=dict)  #: a name with 0 is known, and there is none of it

    @classmethod
    def of(cls, amounts: Amounts) -> "NodeAllocatable":
        """What the list in a Node's status offers; names the check does not know are left out."""

        def pieces(name: str) -> int:
            return amounts.get(name, Quantity.ZERO).value()

        return cls(
            milli_cpu=amounts.get(CPU, Quantity.ZERO).milli(),
            memory=pieces(MEMORY),
            ephemeral_storage=pieces(EPHEMERAL_STORAGE),
            pods=pieces(PODS),
            scalars={name: pieces(name) for name in amounts if names.is_scalar(name)},
        )

    def with_devices(self, devices: Mapping[str, int]) -> "NodeAllocatable":
        """The same with so many *devices*, by resource."""
        if not devices:
            return self
        return NodeAllocatable(
            milli_cpu=self.milli_cpu,
            memory=self.memory,
            ephemeral_storage=self.ephemeral_storage,
            pods=self.pods,
            scalars={**self.scalars, **devices},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedResources:
    """What the pods on a host take of it together."""

    milli_cpu: int = 0
    memory: int = 0
    ephemeral_storage: int = 0
    pods: int = 0
    scalars: Mapping[str, int] = field(default_factory=dict)  #: only what is used at all

    def plus(self, pod: FitRequest) -> "UsedResources":
        """With one pod more."""
        return self._changed(pod, by=1)

    def minus(self, pod: FitRequest) -> "UsedResources":
        """With one pod less, that takes what it took when it came."""
        return self._changed(pod, by=-1)

    def _changed(self, pod: FitRequest, *, by: int) -> "UsedResources":
        scalars = self.scalars
        if pod.scalars:
            changed = {name: scalars.get(name, 0) + by * amount for name, amount in pod.scalars.items()}
            scalars = {name: amount for name, amount in {**scalars, **changed}.items() if amount}
        return UsedResources(
            milli_cpu=self.milli_cpu + by * pod.milli_cpu,
            memory=self.memory + by * pod.memory,
            ephemeral_storage=self.ephemeral_storage + by * pod.ephemeral_storage,
            pods=self.pods + by,
            scalars=scalars,
        )


@dataclass(frozen=True, slots=True)
class InsufficientResource:
    """One resource a host has too little of, with the numbers compared."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """How much more would have to be free."""
        return self.requested - (self.capacity - self.used)

    @property
    def reason(self) -> str:
        """The kubelet's word for it."""
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        """The kubelet's sentence for it."""
        numbers = f"requested: {self.requested}, used: {self.used}, capacity: {self.capacity}"
        return f"Node didn't have enough resource: {self.resource}, {numbers}"


@dataclass(frozen=True, slots=True)
class FitFailure:
    """Why a host cannot run a pod: the kubelet's reason and message, and everything there is too little of."""

    reason: str
    message: str
    insufficient: tuple[InsufficientResource, ...] = ()


def check_fit(
    pod: Pod,
    *,
    used: UsedResources,
    allocatable: NodeAllocatable,
    others: Iterable[Pod] = (),
    request: FitRequest | None = None,
) -> FitFailure | None:
    """Why *pod* cannot join the *others*, which use *used*; ``None`` when it can.

    The others are looked at only when a critical pod does not fit. *request* is what the pod asks for, if somebody
    has added it up already.
    """
    if misfit := _wrong_system(pod):
        return misfit
    request = effective_request(pod, allocatable, request=request)
    shortfalls = insufficient_resources(request, used=used, allocatable=allocatable)
    if not shortfalls:
        return None
    if is_critical(pod) and (needs := still_missing(shortfalls, (one for one in others if may_preempt(pod, one)))):
        listed = "".join(f"(res: {name}, q: {amount}), " for name, amount in needs.items())
        return FitFailure("UnexpectedAdmissionError", f"{_NOTHING_TO_EVICT}[{listed}]", shortfalls)
    return FitFailure(shortfalls[0].reason, shortfalls[0].message, shortfalls)


def effective_request(pod: Pod, allocatable: NodeAllocatable, *, request: FitRequest | None = None) -> FitRequest:
    """What *pod* asks of a host that offers *allocatable*: extended resources unknown there count only as overhead."""
    request = request or demand.fit_request(pod)
    unknown = [name for name in request.scalars if name not in allocatable.scalars and names.is_extended(name)]
    if not unknown:
        return request
    scalars = dict(request.scalars)
    for name in unknown:
        del scalars[name]
        if name in pod.overhead:
            scalars[name] = max(0, pod.overhead[name].value())
    return replace(request, scalars=scalars)


def insufficient_resources(
    request: FitRequest, *, used: UsedResources, allocatable: NodeAllocatable
) -> tuple[InsufficientResource, ...]:
    """Everything that does not fit, in the kubelet's order; the kubelet takes scalars at random, here they are sorted.

    Where a host is over-used already, a pod that asks for nothing more of it fits.
    """
    compared = [
        (PODS, 1, used.pods, allocatable.pods),
        (CPU, request.milli_cpu, used.milli_cpu, allocatable.milli_cpu),
        (MEMORY, request.memory, used.memory, allocatable.memory),
        (EPHEMERAL_STORAGE, request.ephemeral_storage, used.ephemeral_storage, allocatable.ephemeral_storage),
        *(
            (name, asked, used.scalars.get(name, 0), allocatable.scalars.get(name, 0))
            for name, asked in sorted(request.scalars.items())
        ),
    ]
    return tuple(
        InsufficientResource(name, asked, taken, capacity)
        for name, asked, taken, capacity in compared
        if asked > 0 and asked > capacity - taken
    )


def is_critical(pod: Pod) -> bool:
    """Whether the kubelet would evict other pods for this one: static, a mirror of such, or of a system's priority."""
    static = pod.annotations.get(SOURCE_ANNOTATION, "api") != "api"
    return static or _MIRROR in pod.annotations or (pod.priority is not None and pod.priority >= _CRITICAL)


def may_preempt(pod: Pod, other: Pod) -> bool:
    """Whether the kubelet would evict *other* for *pod*, a critical one."""
    if not is_critical(other):
        return True
    return pod.priority is not None and other.priority is not None and pod.priority > other.priority


def still_missing(shortfalls: Iterable[InsufficientResource], evicted: Iterable[Pod]) -> dict[str, int]:
    """What would still be missing, by resource, were all these pods *evicted*."""
    needs = {one.resource: one.missing for one in shortfalls}
    for pod in evicted:
        freed = _freed(pod)
        for name in needs:
            needs[name] -= freed.get(name, 0)
    return {name: amount for name, amount in needs.items() if amount > 0}


def _freed(pod: Pod) -> dict[str, int]:
    """What the kubelet thinks evicting *pod* would free, which may be less than the pod uses.

    Beside resources of the pod as a whole those of its containers do not count, and overhead counts only for what is
    asked for anyway.
    """
    own = pod.resources.requests
    asked = (
        demand.pod_level_amounts(own)
        if pod.has_pod_level_resources
        else demand.requests(pod, pod_level=False, overhead=False)
    )
    freed = {}
    for name, amount in asked.items():
        if not amount.is_zero:
            total = amount + pod.overhead.get(name, Quantity.ZERO)
            freed[name] = total.milli() if name == CPU else total.value()
    return freed | {PODS: 1}


def _wrong_system(pod: Pod) -> FitFailure | None:
    """Why the pod is not made for this operating system, by its label or its spec."""
    if pod.labels.get(_OS_LABEL, _OS) != _OS:
        return FitFailure(
            "PodOSSelectorNodeLabelDoesNotMatch",
            f"Failed to admit pod as the `{_OS_LABEL}` label doesn't match node label",
        )
    if pod.os and pod.os != _OS:
        return FitFailure("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    return None

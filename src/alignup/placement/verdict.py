"""The verdict of one host on one pod before it decides: it admits the pod, rejects it, or is unknown.

A rejection has a *reason*, a short text that many hosts have in common, so that events and tables can group them. It
never begins with a number: the scheduler writes the number of hosts before it. ``detail`` is about one host.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from alignup.align import bits, reason_codes
from alignup.align.decision import Placement, Rejection, Shortfall
from alignup.align.devices.hints import DeviceInventory
from alignup.placement.score import PlacementScore

Inventories = Mapping[str, DeviceInventory]


class VerdictKind(StrEnum):
    ADMITS = "admits"
    REJECTS = "rejects"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict, shared by all hosts in the same state."""

    kind: VerdictKind
    reason: str = ""  #: why the pod is not admitted, in words that hosts have in common
    rejection: Rejection | None = None
    note: str = ""  #: more about the reason, in place of the detail of the rejection
    score: PlacementScore | None = None  #: of an admission
    approximate: bool = False  #: whether the report about the host was not exact
    shared_placements: tuple[Placement, ...] = ()  #: with the device ids of one of the hosts in this state
    #: what the containers get instead, if terminating pods end before, or other devices are chosen
    alternatives: "tuple[Verdict, ...]" = ()
    refusal_code: str = ""  #: the reason code, if the kubelet would admit the pod, but a demand is not met
    #: the devices of that host, and of the host that the verdict is for; ``None``: the same host
    inventories: Inventories | None = field(default=None, compare=False, repr=False)
    own_inventories: Inventories | None = field(default=None, compare=False, repr=False)

    @property
    def detail(self) -> str:
        """Why the pod is not admitted, with numbers."""
        return self.note or (detail_text(self.rejection) if self.rejection else "")

    @property
    def code(self) -> str:
        """The reason code; empty if the host admits the pod."""
        if self.refusal_code or self.rejection or self.admits:
            return self.refusal_code or (self.rejection.reason if self.rejection else "")
        exact = self.kind is VerdictKind.REJECTS and not self.approximate
        default_code = reason_codes.INVALID_POD if exact else reason_codes.NOT_PREDICTED
        return _CODES.get(self.reason, default_code)

    @property
    def admits(self) -> bool:
        return self.kind is VerdictKind.ADMITS

    @property
    def is_rejection(self) -> bool:
        """Whether the kubelet will reject the pod. It may admit a pod whose demand is not met: it ignores demands."""
        return self.kind is VerdictKind.REJECTS and not self.refusal_code

    @property
    def placements(self) -> tuple[Placement, ...]:
        """What each container will get; empty unless the host admits the pod."""
        if self.own_inventories is None or self.inventories is None:
            return self.shared_placements
        return tuple(
            _translate(placement, self.inventories, self.own_inventories) for placement in self.shared_placements
        )

    @property
    def possible_placements(self) -> tuple[tuple[Placement, ...], ...]:
        """All that the containers may get: more than one if it depends on the end of pods, or on a random choice.

        Which of equally near devices a container gets is in ``Placement.choices``.
        """
        return (self.placements, *(alternative.placements for alternative in self.alternatives))

    @property
    def takes_resources(self) -> bool:
        """Whether the pod gets CPUs, memory or devices of its own."""
        return any(
            placement.cpus is not None or placement.memory or placement.devices for placement in self.shared_placements
        )

    def for_host(self, inventories: Inventories) -> "Verdict":
        """Return this verdict with the device ids of another host in the same state."""
        if self.inventories is None or self.inventories is inventories:
            return self
        return Verdict(
            self.kind,
            self.reason,
            self.rejection,
            self.note,
            self.score,
            self.approximate,
            self.shared_placements,
            tuple(alternative.for_host(inventories) for alternative in self.alternatives),
            self.refusal_code,
            self.inventories,
            inventories,
        )


def unknown(reason: str, note: str = "") -> Verdict:
    return Verdict(VerdictKind.UNKNOWN, reason, note=note)


def defect(error: Exception) -> Verdict:
    """Return the verdict of a decision that failed unexpectedly."""
    return unknown(DEFECT, f"{type(error).__name__}: {error}")


def rejected(rejection: Rejection, resources: Sequence[str] = ()) -> Verdict:
    return Verdict(VerdictKind.REJECTS, reason_text(rejection, resources), rejection)


def reason_text(rejection: Rejection, disagreeing: Sequence[str] = ()) -> str:
    """Return the reason of *rejection* in words that hosts have in common, without numbers at the beginning.

    *disagreeing* are resources that prefer different NUMA nodes, if that is the reason.
    """
    if disagreeing:
        return f"no NUMA nodes are preferred by {' and '.join(disagreeing)} alike"
    resources = sorted({shortfall.resource for shortfall in rejection.shortfalls})
    names = ", ".join(resources)
    if rejection.provider == "host":
        return f"not enough {names} on the whole host" if resources else rejection.reason
    if rejection.provider is not None:
        return f"not enough free {names}" if resources else rejection.reason
    if not resources:
        return "no NUMA nodes suit all resources together"
    return f"not enough {names} on one NUMA node"


def detail_text(rejection: Rejection) -> str:
    container = f"container {rejection.container}: " if rejection.container else ""
    return f"{container}{rejection.reason}: {rejection.message}" + "".join(
        f"; {text}" for text in map(_shortfall_text, rejection.shortfalls)
    )


def _shortfall_text(short: Shortfall) -> str:
    area = "the host" if short.nodes is None else f"NUMA node {bits.show(short.nodes)}"
    return f"{short.resource}: {short.needed} needed, {short.free} free on {area}"


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a host that can be in several states: it admits the pod only if it does in every state."""
    distinct = list(verdicts)
    kinds = {verdict.kind for verdict in distinct}
    if len(kinds) == 1:
        first = distinct[0]
        others = tuple(verdict for verdict in distinct[1:] if verdict.shared_placements != first.shared_placements)
        if not first.admits or not others:
            return first
        chosen_otherwise = [alternative for verdict in (first, *others) for alternative in verdict.alternatives]
        return replace(first, alternatives=(*others, *chosen_otherwise))
    refusing_verdict = next(verdict for verdict in distinct if not verdict.admits)
    if VerdictKind.ADMITS not in kinds:
        return refusing_verdict
    return unknown(WAITS_FOR_TERMINATION, refusing_verdict.detail)


WAITS_FOR_TERMINATION = "waits for the end of terminating pods"
WAITS_FOR_CONFIRMATION = "waits until the kubelet has admitted an earlier pod"
DEFECT = "the decision failed"
TOO_MANY_TERMINATING = "too many terminating pods"
UNREADABLE_POD = "a pod that is bound there cannot be read"
MAY_BE_REJECTED = "the kubelet may choose devices with which it rejects the pod"
UNSETTLED_DEVICES = "waits until the devices of an earlier pod are known"
#: Reasons that pass within seconds.
PASSING_REASONS = frozenset({WAITS_FOR_TERMINATION, WAITS_FOR_CONFIRMATION, TOO_MANY_TERMINATING, UNSETTLED_DEVICES})
TOO_MUCH_WORK = "the decision would take too much work"
_CODES = {DEFECT: reason_codes.INTERNAL_ERROR, MAY_BE_REJECTED: reason_codes.MAY_BE_REJECTED}


class Feasibility(dict[str, Verdict]):
    """The verdicts of all hosts at one time."""

    def __missing__(self, host: str) -> Verdict:
        """Return the verdict of a host without a report."""
        return NO_REPORT

    def admitting(self) -> list[str]:
        return [host for host, verdict in self.items() if verdict.kind is VerdictKind.ADMITS]


NO_REPORT = unknown("no report about this host")


def _translate(placement: Placement, inventories: Inventories, host_inventories: Inventories) -> Placement:
    """Return *placement* with the device ids of another host that has the same devices apart from their ids."""
    if not placement.devices:
        return placement

    def translate(resource: str, id_: str) -> str:
        return host_inventories[resource].devices[inventories[resource].indexes[id_]].id

    devices = {
        resource: tuple([translate(resource, id_) for id_ in ids]) for resource, ids in placement.devices.items()
    }
    choices = {
        resource: possible.renamed(partial(translate, resource)) for resource, possible in placement.choices.items()
    }
    return replace(placement, devices=devices, choices=choices)

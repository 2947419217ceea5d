"""Which pods of the state files are alive, and what they are called.

A pod that has ended stays in the state files until the kubelet admits the next pod; that admission frees it first. So
its entries must not count. But an entry is only left out on evidence: the kubelet no longer lists the pod, and the API
server agrees. A kubelet that has just started lists no pods yet, while all of them run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alignup.align.bits import CpuSet
from alignup.align.memory.ledger import Block
from alignup.kubernetes.plugins.pod_resources_client import ListedContainer, ListedPod
from alignup.observe.kubelet_sources import KnownPod, Sources
from alignup.placement.host_report import PodStage

PodName = tuple[str, str]  #: namespace and name


@dataclass(slots=True)
class ContainerHoldings:
    """What the state files say that one container holds."""

    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()
    devices: dict[str, frozenset[str]] = field(default_factory=dict)  #: by resource


Holdings = dict[str, dict[str, ContainerHoldings]]  #: pod uid → container


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePods:
    alive: Mapping[str, PodName | None]  #: by uid; ``None``: its name is unknown
    ended: tuple[str, ...]  #: uids that only the state files still have
    listed: Mapping[str, ListedPod]  #: by uid
    newcomers: tuple[ListedPod, ...]  #: listed by the kubelet, but not in its files
    notes: tuple[str, ...]  #: where the sources disagree


def holdings(sources: Sources) -> Holdings:
    """Collect what the state files have for each container."""
    found: Holdings = {}

    def own(uid: str, container: str) -> ContainerHoldings:
        return found.setdefault(uid, {}).setdefault(container, ContainerHoldings())

    files = sources.files
    for uid, containers in files.cpu.entries.items() if files.cpu else ():
        for name, cpus in containers.items():
            own(uid, name).cpus = cpus
    for uid, blocks in files.memory.entries.items() if files.memory else ():
        for name, held in blocks.items():
            own(uid, name).memory = held
    for entry in files.devices.entries if files.devices else ():
        own(entry.uid, entry.container).devices[entry.resource] = frozenset(entry.nodes)
    return found


def find_live_pods(sources: Sources, held: Holdings) -> LivePods:
    known = sources.pods or {}
    admitted = [*dict.fromkeys((*(sources.allocated or ()), *held))]
    if sources.allocated is None:  # an older kubelet: every pod that it lists was admitted
        names = {(one.namespace, one.name) for one in sources.listed or ()}
        admitted += [uid for uid, one in known.items() if uid not in held and one.name in names]
    matched, rest = _match(admitted, known, held, sources.listed or ())
    running = [uid for uid in admitted if uid in known and known[uid].stage is PodStage.RUNNING]
    credible = sources.listed is not None and all(uid in matched for uid in running)
    alive: dict[str, PodName | None] = {}
    ended, notes = [], []
    for uid in admitted:
        name = known[uid].name if uid in known else None
        if uid in matched:
            name = (matched[uid].namespace, matched[uid].name)
        if _has_ended(known.get(uid), listed=uid in matched, credible=credible and sources.pods is not None):
            ended.append(uid)
            continue
        alive[uid] = name
        if sources.listed is not None and uid not in matched:
            shown = "/".join(name) if name else uid
            notes.append(f"pod {shown} is in the kubelet's files, but PodResources does not list it")
    newcomers = tuple(one for one in rest if _holds_something(one))
    notes += [f"pod {one.namespace}/{one.name} holds resources, but is not in the state files" for one in newcomers]
    return LivePods(alive=alive, ended=tuple(ended), listed=matched, newcomers=newcomers, notes=tuple(notes))


def _has_ended(known: KnownPod | None, *, listed: bool, credible: bool) -> bool:
    """Whether the kubelet frees the pod before it admits the next one."""
    if known is not None and known.finished:
        return True  # older kubelets list pods whose end they have reported
    if listed or not credible:
        return False
    return known is None or known.stage is not PodStage.RUNNING


def _match(
    uids: Iterable[str], known: Mapping[str, KnownPod], held: Holdings, listed: Iterable[ListedPod]
) -> tuple[dict[str, ListedPod], list[ListedPod]]:
    """Match uids with listed pods, by name and then by what they hold; also return the listed pods without a uid."""
    left = list(listed)
    matched: dict[str, ListedPod] = {}

    def take(uid: str, found: list[ListedPod]) -> None:
        matched[uid] = found[0]
        left.remove(found[0])

    named = [uid for uid in uids if uid in known]
    for exact in (True, False):  # two pods can have one name, if the first was force-deleted
        for uid in named:
            same = [one for one in left if (one.namespace, one.name) == known[uid].name]
            found = [one for one in same if _agrees(one, held.get(uid, {}))] if exact else same
            if uid not in matched and found:
                take(uid, found)
    for uid in uids:
        found = [one for one in left if _holds_something(one) and _agrees(one, held.get(uid, {}))]
        if uid not in matched and uid not in known and len(found) == 1:
            take(uid, found)
    return matched, left


def _agrees(listed: ListedPod, held: Mapping[str, ContainerHoldings]) -> bool:
    none = ContainerHoldings()
    return all(
        own.cpus == held.get(name, none).cpus and device_ids(own) == held.get(name, none).devices
        for name, own in listed.containers.items()
    )


def device_ids(container: ListedContainer) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for device in container.devices:
        found.setdefault(device.resource, set()).add(device.id)
    return {resource: frozenset(ids) for resource, ids in found.items()}


def _holds_something(listed: ListedPod) -> bool:
    own = (one.cpus or one.memory or one.devices for one in listed.containers.values())
    return bool(listed.cpus or listed.memory or any(own))

"""The checkpoint as a JSON document: everything an agent needs after a restart.

Version 3 is written. Versions 1 and 2 are upgraded when they are read.
"""

from collections.abc import Mapping
from typing import Any, Self

from alignup.documents.codec import Count, Document
from alignup.documents.decisions import rename_keys
from alignup.documents.ledgers.documents import PodEntryDocument, ResidueDocument
from alignup.documents.pods import PodDocument
from alignup.documents.run_status import PodGrants, PodRunStatus, timestamp


class Fingerprint(Document, frozen=True):
    """What a checkpoint was written on: named facts, and a digest of all of them."""

    fingerprint: str
    facts: dict[str, str]

    def differences(self, now: "Fingerprint") -> tuple[str, ...]:
        return tuple(
            f"{name}: was {self.facts.get(name) or 'nothing'}, is {now.facts.get(name) or 'nothing'}"
            for name in {**self.facts, **now.facts}
            if self.facts.get(name) != now.facts.get(name)
        )


class TerminationRequest(Document, frozen=True):
    """The pod is terminating; it keeps its resources until its last container has stopped."""

    since: float  #: seconds since 1970
    grace: float | None  #: seconds; ``None``: the pod's own grace period

    def is_sooner_than(self, other: Self) -> bool:
        """Whether this request kills the pod earlier; the pod's own grace period counts as the longest."""
        if self.grace is None:
            return False
        return other.grace is None or self.since + self.grace < other.since + other.grace


class HeldPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """An admitted pod. ``alignup run`` stores only the ledger entry."""

    entry: PodEntryDocument
    since: float | None = None  #: seconds since 1970
    source: str | None = None
    grants: PodGrants = {}
    manifest: str | None = None
    termination: TerminationRequest | None = None


class _StoredPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pod: PodDocument
    since: float  #: seconds since 1970
    source: str
    manifest: str | None = None
    termination: TerminationRequest | None = None


class WaitingPodDocument(_StoredPodDocument, frozen=True, omit_defaults=True, kw_only=True):
    overtaken: Count


class FinishedPodDocument(_StoredPodDocument, frozen=True, omit_defaults=True, kw_only=True):
    run: PodRunStatus
    decision: Any  #: a ``DecisionDocument``, of any version when it is read


class CheckpointDocument(Document, frozen=True, kw_only=True):
    format: str
    version: int
    serial: int
    journal: str  #: the key of the journal that follows it; empty: none does
    machine: Fingerprint
    settings: Fingerprint
    residue: ResidueDocument
    plugins: list[str]  #: resources that device plugins serve
    pods: list[HeldPodDocument]
    waiting: list[WaitingPodDocument]
    finished: list[Any]  #: each a :class:`FinishedPodDocument`; a damaged one does not make the rest unusable


#: Facts about settings that version 1 named differently.
_FACTS = {
    "resources whose plugins are asked": "resources with preferred allocation",
    "most pods": "maximum number of pods",
    "pods choose their policy": "pod policy annotations",
    "faults of the kubelet": "kubelet defects",
}
_ENTRY_KEYS = ("pod", "hints", "uses", "cpus", "memory", "devices")


def upgrade_version_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version 1 checkpoint as version 2; ``KeyError``, ``TypeError``, ``AttributeError`` if it is damaged."""
    residue, extra, settings = document["crumbs"], document["extra"], document["settings"]
    memory = residue["memory"]
    lists = document["pods"], document["waiting"], extra.get("finished", [])
    if not all(isinstance(stored, list) for stored in lists):
        raise TypeError("pods must be lists")
    pods, waiting, finished = ([rename_keys(pod, {"ending": "termination"}) for pod in stored] for stored in lists)
    for pod in finished:  # JSON of any shape, not validated yet
        run = pod.get("run") if isinstance(pod, Mapping) else None
        if isinstance(run, Mapping) and isinstance(run.get("containers"), list):
            pod["run"] = {**run, "containers": list(map(_upgrade_container, run["containers"]))}
    return {
        "format": document["format"],
        "version": 2,
        "serial": document["serial"],
        "machine": document["machine"],
        "settings": {**settings, "facts": rename_keys(settings["facts"], _FACTS)},
        "residue": {
            "cpus": residue["cpus"],
            "memory": {"reusable": memory["reusable"], "reserved": memory["spread"]},
            "devices": residue["devices"],
            "providers": residue["others"],
        },
        "plugins": extra.get("plugins", []),
        "pods": [{"entry": {key: pod.pop(key) for key in _ENTRY_KEYS if key in pod}, **pod} for pod in pods],
        "waiting": waiting,
        "finished": finished,
    }


def upgrade_version_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version 2 checkpoint as version 3; earlier releases do not know the journal, and must not read it."""
    return {**document, "version": 3, "journal": ""}


def _upgrade_container(container: Any) -> Any:  # noqa: ANN401 - JSON of any shape, not validated yet
    """Version 1 has times in seconds, and the key ``exit_code``."""
    if not isinstance(container, Mapping):
        return container
    upgraded = rename_keys(container, {"exit_code": "exitCode"})
    for key in ("started", "ended"):
        if isinstance(upgraded.get(key), int | float):
            upgraded[key] = timestamp(upgraded[key])
    return {**upgraded, "last": _upgrade_container(upgraded.get("last"))}

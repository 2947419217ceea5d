"""The checkpoint as a JSON document: everything an agent needs after a restart.

Version 3 is written. Versions 1 and 2 are upgraded when they are read.
"""

from collections.abc import Mapping
from typing import Any

from alignup.documents.codec import Count, Document
from alignup.documents.decisions import rename_keys
from alignup.documents.ledgers.documents import PodEntryDocument, ResidueDocument
from alignup.documents.pods import PodDocument

#: container → resource → what the device plugin returned for the devices
PodGrants = Mapping[str, Mapping[str, Mapping[str, Any]]]


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


class HeldPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """An admitted pod. ``alignup run`` stores only the ledger entry."""

    entry: PodEntryDocument
    since: float | None = None  #: seconds since 1970
    source: str | None = None
    grants: PodGrants = {}


class WaitingPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pod: PodDocument
    since: float  #: seconds since 1970
    source: str
    overtaken: Count


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
    if not all(isinstance(document[key], list) for key in ("pods", "waiting")):
        raise TypeError("pods must be lists")
    pods, waiting = [{**pod} for pod in document["pods"]], document["waiting"]
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
    }


def upgrade_version_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version 2 checkpoint as version 3; earlier releases do not know the journal, and must not read it."""
    return {**document, "version": 3, "journal": ""}

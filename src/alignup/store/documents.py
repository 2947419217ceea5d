"""The JSON documents in the database."""

import msgspec

from alignup.documents.codec import Document
from alignup.documents.ledgers.documents import PodEntryDocument
from alignup.documents.pods import PodDocument, PodGrants


class Fingerprint(Document, frozen=True):
    """What a ledger was written on: named facts, and a digest of all of them."""

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
    grants: PodGrants = msgspec.field(default_factory=dict)


class WaitingPodDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pod: PodDocument
    since: float  #: seconds since 1970
    source: str

"""The objects of an API server, each with its resource version, and the history of their changes."""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

from alignup.testing.api_server.faults import StatusProblem, conflict

Document = dict[str, Any]
StoreKey = tuple[str, str]  #: namespace (empty: none) and name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """A resource that the server knows."""

    kind: str
    plural: str
    version: str = "v1"
    group: str = ""
    namespaced: bool = True
    status: bool = False  #: whether the status is a subresource

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclass(frozen=True)
class StoredObject:
    """One version of an object; its document must not be changed."""

    document: Document

    @cached_property
    def text(self) -> bytes:
        return msgspec.json.encode(self.document)

    @property
    def key(self) -> StoreKey:
        metadata = self.document["metadata"]
        return metadata.get("namespace", ""), metadata["name"]

    def at_revision(self, revision: int) -> "StoredObject":
        metadata = {**self.document["metadata"], "resourceVersion": str(revision)}
        return StoredObject({**self.document, "metadata": metadata})


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One write: ``old`` is ``None`` for a new object, ``new`` for a deleted one."""

    revision: int
    resource: ServedResource
    old: StoredObject | None
    new: StoredObject | None


@dataclass
class ObjectStore:
    """All objects; every write has a revision of its own."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    revision: int = 1
    compacted: int = 0  #: changes up to this revision are forgotten
    changes: list[StoredChange] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  #: set, and replaced, with every write
    _objects: dict[ServedResource, dict[StoreKey, StoredObject]] = field(default_factory=lambda: defaultdict(dict))

    def objects(self, resource: ServedResource, namespace: str = "") -> list[StoredObject]:
        """Return the objects in the order of their keys; without *namespace* of all namespaces."""
        by_key = self._objects[resource]
        return [by_key[key] for key in sorted(by_key) if not namespace or key[0] == namespace]

    def find(self, resource: ServedResource, key: StoreKey) -> StoredObject | None:
        return self._objects[resource].get(key)

    def get(self, resource: ServedResource, key: StoreKey) -> StoredObject:
        stored_object = self.find(resource, key)
        if stored_object is None:
            raise StatusProblem(404, f'{resource.name} "{key[1]}" not found')
        return stored_object

    def create(self, resource: ServedResource, document: Document) -> StoredObject:
        """Add an object, with the metadata that the server sets."""
        metadata = {**document["metadata"]}
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{self.revision:05x}"
        key = (metadata.get("namespace", ""), metadata.get("name", ""))
        if not key[1]:
            raise StatusProblem(422, f"{resource.kind}.{resource.group} is invalid: metadata.name: Required value")
        if self.find(resource, key) is not None:
            raise StatusProblem(409, f'{resource.name} "{key[1]}" already exists', reason="AlreadyExists")
        metadata.setdefault("uid", str(uuid.UUID(int=self.revision + 1, version=4)))
        metadata.setdefault("creationTimestamp", self.timestamp())
        metadata.setdefault("generation", 1)
        document = {"apiVersion": resource.api_version, "kind": resource.kind, **document, "metadata": metadata}
        return self._write(resource, key, None, document)

    def replace(self, resource: ServedResource, key: StoreKey, document: Document) -> StoredObject:
        """Write a new version of an object, unless it is the same; uid and resource version must match if given."""
        old = self.get(resource, key)
        metadata, old_metadata = document["metadata"], old.document["metadata"]
        if metadata.get("uid", old_metadata["uid"]) != old_metadata["uid"]:
            uids = f"UID in precondition: {metadata['uid']}, UID in object meta: {old_metadata['uid']}"
            why = f"Precondition failed: {uids}"
            raise conflict(resource.name, key[1], why)
        if metadata.get("resourceVersion") not in {None, "", old_metadata["resourceVersion"]}:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(resource.name, key[1], why)
        fixed_fields = {
            name: old_metadata[name] for name in ("uid", "creationTimestamp", "generation", "resourceVersion")
        }
        document = {**document, "metadata": {**metadata, **fixed_fields}}
        if document == old.document:
            return old
        if document.get("spec") != old.document.get("spec"):
            document["metadata"]["generation"] = old_metadata["generation"] + 1
        return self._write(resource, key, old, document)

    def remove(self, resource: ServedResource, key: StoreKey) -> StoredObject:
        """Delete an object; return its last version, which has the revision of the deletion."""
        old = self.get(resource, key)
        self.revision += 1
        del self._objects[resource][key]
        last = old.at_revision(self.revision)
        self.changes.append(StoredChange(self.revision, resource, last, None))
        self._wake()
        return last

    def compact(self) -> None:
        """Forget all changes, so that watches cannot resume at a version before this one."""
        self.compacted = self.revision
        self.changes.clear()
        self._wake()

    def after(self, revision: int) -> Iterator[StoredChange]:
        """Iterate over the changes after *revision*; a 410 problem if some of them are forgotten."""
        if revision < self.compacted:
            raise StatusProblem(410, f"too old resource version: {revision} ({self.compacted + 1})")
        first = revision - self.changes[0].revision + 1 if self.changes else 0  # every change has the next revision
        return iter(self.changes[max(0, first) :])

    def timestamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _write(
        self, resource: ServedResource, key: StoreKey, old: StoredObject | None, document: Document
    ) -> StoredObject:
        self.revision += 1
        document["metadata"]["resourceVersion"] = str(self.revision)
        new = StoredObject(copy_of(document))  # what the caller holds may change later
        self._objects[resource][key] = new
        self.changes.append(StoredChange(self.revision, resource, old, new))
        self._wake()
        return new

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def copy_of(document: Document) -> Document:
    document_copy: Document = msgspec.json.decode(msgspec.json.encode(document))
    return document_copy

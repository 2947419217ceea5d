"""A directory of manifests: the pods in it are to run here, as long as their file is there.

The directory is looked at every now and then. A file counts once it has been the same for two looks, so one that is
still being written does not; one that cannot be read leaves things as they are. A pod whose manifest gives no uid gets
one made of the file and of what it asks for: a changed pod is another pod, and takes the place of the one before.
"""

import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from alignup.agent.pod_record import API_SOURCE, PodRecord, same_workload
from alignup.align.errors import ManifestError
from alignup.align.workload import Pod, validation
from alignup.kube import documents, manifests
from alignup.kube.manifests import Accept

_IDS = uuid.UUID("0f6a8f0a-4c0e-5b5e-8d3c-53a1b54c2f0e")  # made once; ids made from it stay the same for ever
#: What a file is known by: its time, size, number and device.
Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ManifestPod:
    """A pod of a manifest."""

    pod: Pod
    file: str
    generated_uid: bool  #: the manifest gives it no uid


@dataclass(frozen=True, slots=True)
class DirScan:
    """What the directory wants."""

    pods: tuple[ManifestPod, ...] = ()
    unreadable: frozenset[str] = frozenset()  #: files of which it is not known what they want
    failed: bool = False  #: the directory itself cannot be read
    notes: tuple[str, ...] = ()  #: what was not said before


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """What has to change."""

    gone: tuple[str, ...] = ()  #: uids
    added: tuple[ManifestPod, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gone or self.added)


@dataclass(slots=True)
class ManifestDir:
    """A directory of manifests, and what was seen in it so far."""

    directory: Path
    accept: Accept = validation.accept
    keep: bool = False  #: pods keep their manifests, for whoever runs them
    _files: dict[str, "_File"] = field(default_factory=dict)
    _before: dict[str, Signature] | None = None  #: what the last look saw; ``None``: there was none
    _said: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong as of the last look."""
        return tuple(self._said.values())

    def look(self) -> DirScan:
        """Look again."""
        said: dict[str, str] = {}
        try:
            seen = dict(_listed(self.directory))
        except OSError as error:
            said[""] = f"{self.directory} cannot be read ({error.strerror}); its pods stay as they are"
            return DirScan(failed=True, notes=self._new(said))
        # An editor may take a file away for a moment before it puts the new one in its place.
        for path in self._files.keys() - seen.keys() - (self._before or {}).keys():
            del self._files[path]
        for path, signature in seen.items():
            known = self._files.get(path)
            settled = self._before is None or self._before.get(path) == signature
            if settled and (known is None or known.signature != signature):
                self._files[path] = self._read(path, signature)
        self._before = seen
        said |= {path: file.problem for path, file in self._files.items() if file.problem}
        unsure = {path for path in seen if path not in self._files or self._files[path].pods is None}
        return DirScan(tuple(self._wanted(said)), frozenset(unsure), notes=self._new(said))

    def _read(self, path: str, signature: Signature) -> "_File":
        """A file as it is now; one that cannot be read wants what it wanted before."""
        nameless: set[str] = set()

        def accept(pod: Pod) -> Pod:
            accepted = self.accept(pod)
            if accepted.uid:
                return accepted
            made = str(uuid.uuid5(_IDS, f"{path}\n{accepted!r}{accepted.manifest.text if accepted.manifest else ''}"))
            nameless.add(made)
            return replace(accepted, uid=made)

        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a path that scandir gave
                text = file.read(documents.MAX_BYTES + 1)
            reading = manifests.read_workloads(text, name=path, accept=accept, keep=self.keep)
        except (OSError, ManifestError) as error:
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            else:  # the file is named already
                why = "; ".join(line.removeprefix(path).lstrip(",: ") for line in error.lines(3))
            before = self._files.get(path)
            problem = f"{path} cannot be used ({why}); its pods stay as they are"
            return _File(signature, before.pods if before else None, problem)
        pods = tuple(
            ManifestPod(pod, path, generated_uid=pod.uid in nameless or work.kind != "Pod")
            for work in reading.workloads
            if not work.finished
            for pod in work.pods()
        )
        return _File(signature, pods, "; ".join(reading.warnings))

    def _wanted(self, said: dict[str, str]) -> Iterator[ManifestPod]:
        """Every pod once: of two with one uid the first file's counts."""
        owners: dict[str, str] = {}
        for path in sorted(self._files):
            for wanted in self._files[path].pods or ():
                owner = owners.setdefault(wanted.pod.uid, path)
                if owner == path:
                    yield wanted
                else:
                    said[f"{path} {wanted.pod.uid}"] = f"{path}: the uid {wanted.pod.uid} is taken by a pod of {owner}"

    def _new(self, said: dict[str, str]) -> tuple[str, ...]:
        """What was not said at the last look."""
        new = tuple(text for what, text in said.items() if self._said.get(what) != text)
        self._said = said
        return new


@dataclass(frozen=True, slots=True)
class _File:
    """One file as it was read last; while it cannot be, its pods are those of before."""

    signature: Signature
    pods: tuple[ManifestPod, ...] | None  #: ``None``: it never could be read
    problem: str = ""


def plan_changes(look: DirScan, known: Iterable[PodRecord]) -> ManifestChanges:
    """What has to change so that the directory has its pods here, given those that are *known*."""
    if look.failed:
        return ManifestChanges()
    here = [one for one in known if one.source != API_SOURCE]
    by_uid = {one.pod.uid: one for one in here}
    by_name = {(one.source, one.pod.namespace, one.pod.name): one for one in here}
    stay, come = set(), []
    for wanted in look.pods:
        pod = wanted.pod
        found = by_uid.get(pod.uid)
        if found is None and wanted.generated_uid:
            # A comment was edited, or another version of this program makes other uids: it is the same pod.
            found = by_name.get((wanted.file, pod.namespace, pod.name))
        if found is not None and same_workload(found.pod, pod):
            stay.add(found.pod.uid)
        else:
            come.append(wanted)
    gone = [one.pod.uid for one in here if one.pod.uid not in stay and one.source not in look.unreadable]
    return ManifestChanges(tuple(gone), tuple(come))


def _listed(directory: Path) -> Iterator[tuple[str, Signature]]:
    """The manifests of a directory, as they are now."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.endswith(manifests.SUFFIXES):
                continue
            try:
                found = entry.stat()
            except FileNotFoundError:  # it went while we looked, or is a link to nowhere
                continue
            if stat.S_ISREG(found.st_mode):
                yield entry.path, (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)

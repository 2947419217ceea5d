"""A manifest directory: its pods are admitted as long as their files exist.

The directory is scanned periodically. A file counts once it is unchanged between two scans, so that a partly written
one does not. A file that cannot be read leaves its pods as they are. A pod without a uid gets one derived from the file
and the pod: a changed pod is another pod, which replaces the one before.
"""

import asyncio
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.admission_queue import AdmissionQueue
from alignup.agent.state import API_SOURCE, AdmissionResult, PodRecord, same_workload
from alignup.agent.transaction import Transaction
from alignup.align.errors import ManifestError
from alignup.align.workload import Pod, validation
from alignup.atomic_files import open_input
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests import workloads as manifests
from alignup.web.responses import BusyError, LedgerFullError, NotReadyError

_UID_NAMESPACE = uuid.UUID("0f6a8f0a-4c0e-5b5e-8d3c-53a1b54c2f0e")  # must not change: derived uids depend on it
Signature = tuple[int, int, int, int]  #: modification time, size, inode and device of a file


@dataclass(frozen=True, slots=True)
class ManifestPod:
    pod: Pod
    file: str
    derived_uid: bool  #: whether the manifest has no uid


@dataclass(frozen=True, slots=True)
class DirScan:
    pods: tuple[ManifestPod, ...] = ()
    unknown: frozenset[str] = frozenset()  #: files that have not been read yet
    failed: bool = False  #: whether the directory cannot be read
    notes: tuple[str, ...] = ()  #: new problems


@dataclass(slots=True)
class ManifestDir:
    directory: Path
    _files: dict[str, "_File"] = field(default_factory=dict)
    _last_scan: dict[str, Signature] | None = None  #: ``None``: no scan yet
    _problems: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems.values())

    def scan(self) -> DirScan:
        problems: dict[str, str] = {}
        try:
            files = dict(_list_files(self.directory))
        except OSError as error:
            problems[""] = f"{self.directory} cannot be read ({error.strerror}); its pods stay as they are"
            return DirScan(failed=True, notes=self._new(problems))
        # An editor may remove a file for a moment before it writes the new one.
        for path in self._files.keys() - files.keys() - (self._last_scan or {}).keys():
            del self._files[path]
        for path, signature in files.items():
            read_file = self._files.get(path)
            stable = self._last_scan is None or self._last_scan.get(path) == signature
            if stable and (read_file is None or read_file.signature != signature):
                self._files[path] = self._read(path, signature)
        self._last_scan = files
        problems |= {path: file.problem for path, file in self._files.items() if file.problem}
        unknown_files = {path for path in files if path not in self._files or self._files[path].pods is None}
        return DirScan(tuple(self._unique_pods(problems)), frozenset(unknown_files), notes=self._new(problems))

    def _read(self, path: str, signature: Signature) -> "_File":
        """Read a file; the pods of an unreadable file stay as they were."""
        derived_uids: set[str] = set()

        def accept(pod: Pod) -> Pod:
            accepted_pod = validation.accept(pod)
            if accepted_pod.uid:
                return accepted_pod
            uid = str(uuid.uuid5(_UID_NAMESPACE, f"{path}\n{accepted_pod!r}"))
            derived_uids.add(uid)
            return replace(accepted_pod, uid=uid)

        try:
            with open_input(path) as file:
                text = file.read(documents.MAX_BYTES + 1)
            workloads = manifests.read_workloads(text, name=path, accept=accept, ignore_unknown_fields=True)
        except (OSError, ManifestError) as error:
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            else:  # its lines start with the path
                why = "; ".join(line.removeprefix(path).lstrip(",: ") for line in error.lines(3))
            old_file = self._files.get(path)
            problem = f"{path} cannot be used ({why}); its pods stay as they are"
            return _File(signature, old_file.pods if old_file else None, problem)
        pods = tuple(
            ManifestPod(pod, path, derived_uid=pod.uid in derived_uids or workload.kind != "Pod")
            for workload in workloads.workloads
            if not workload.finished
            for pod in workload.pods()
        )
        return _File(signature, pods, "; ".join(workloads.warnings))

    def _unique_pods(self, problems: dict[str, str]) -> Iterator[ManifestPod]:
        """Yield the pods of all files; of two with the same uid, the first."""
        owners: dict[str, str] = {}
        for path in sorted(self._files):
            for manifest in self._files[path].pods or ():
                uid = manifest.pod.uid
                if uid in owners:
                    problems[f"{path} {uid}"] = f"{path}: another pod, in {owners[uid]}, has the same uid {uid}"
                else:
                    owners[uid] = path
                    yield manifest

    def _new(self, problems: dict[str, str]) -> tuple[str, ...]:
        new = tuple(text for key, text in problems.items() if self._problems.get(key) != text)
        self._problems = problems
        return new


@dataclass(frozen=True, slots=True)
class _File:
    signature: Signature
    pods: tuple[ManifestPod, ...] | None  #: of the last successful read; ``None``: there was none
    problem: str = ""


def plan_changes(scan: DirScan, records: Iterable[PodRecord]) -> tuple[tuple[str, ...], tuple[ManifestPod, ...]]:
    """Return the uids of removed pods, and the added pods."""
    if scan.failed:
        return (), ()
    manifest_records = [record for record in records if record.source != API_SOURCE]
    by_uid = {record.pod.uid: record for record in manifest_records}
    by_name = {(record.source, record.pod.namespace, record.pod.name): record for record in manifest_records}
    unchanged_uids, added_manifests = set(), []
    for manifest in scan.pods:
        pod = manifest.pod
        record = by_uid.get(pod.uid)
        if record is None and manifest.derived_uid:
            # The uid changes with a comment, or with another version of alignup; the pod is still the same.
            record = by_name.get((manifest.file, pod.namespace, pod.name))
        if record is not None and same_workload(record.pod, pod):
            unchanged_uids.add(record.pod.uid)
        else:
            added_manifests.append(manifest)
    removed_uids = [
        record.pod.uid
        for record in manifest_records
        if record.pod.uid not in unchanged_uids and record.source not in scan.unknown
    ]
    return tuple(removed_uids), tuple(added_manifests)


def _list_files(directory: Path) -> Iterator[tuple[str, Signature]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.endswith(manifests.SUFFIXES):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # removed meanwhile, or a dangling link
                continue
            except OSError:  # for example a loop of links: reading it fails with the same error
                yield entry.path, (0, 0, 0, 0)
                continue
            if stat.S_ISREG(status.st_mode):
                yield entry.path, (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


@dataclass(slots=True)
class ManifestWatcher:
    """The task that scans *directory* and passes changes to *queue*.

    A pod that does not fit waits like any other. A pod that is invalid or can never fit is logged once, and ignored
    until its file changes; a pod whose uid another pod has, also until that pod is gone.
    """

    directory: ManifestDir
    queue: AdmissionQueue
    log: FilteringBoundLogger
    interval: float = 1.0  #: seconds between scans
    _rejected: dict[str, tuple[Pod, str]] = field(default_factory=dict)  #: uid → the pod as it was, and why
    _used_uids: set[str] = field(default_factory=set)  #: of all pods of the queue, at the last scan
    _queue_problem: str = ""  #: why the queue did not accept the last changes

    @property
    def notes(self) -> tuple[str, ...]:
        rejections = (why for _, why in self._rejected.values())
        return (*self.directory.problems, *rejections, *filter(None, (self._queue_problem,)))

    async def run(self) -> None:
        while True:
            try:
                await self.scan_once()
            except Exception as error:  # noqa: BLE001 - a bug must not stop it
                self.log.error("manifest", detail=f"bug in alignup: {type(error).__name__}: {error}")  # noqa: TRY400
            await asyncio.sleep(self.interval)

    async def scan_once(self) -> None:
        scan = await asyncio.to_thread(self.directory.scan)
        for note in scan.notes:
            self.log.warning("manifest", detail=note)
        if scan.failed:
            return
        records = tuple(self.queue.state.all_records())
        removed_uids, added_manifests = plan_changes(scan, records)
        self._retry_rejected(scan, {record.pod.uid for record in records}.difference(removed_uids))
        added_manifests = tuple(manifest for manifest in added_manifests if manifest.pod.uid not in self._rejected)
        if removed_uids or added_manifests:
            await self._replace(removed_uids, added_manifests)

    def _retry_rejected(self, scan: DirScan, used_uids: set[str]) -> None:
        """Forget rejected pods that have changed or are gone, or whose uid was used by another pod that is gone."""
        pods = {manifest.pod.uid: manifest.pod for manifest in scan.pods}
        freed_uids, self._used_uids = self._used_uids - used_uids, used_uids
        for uid, (pod, _) in tuple(self._rejected.items()):
            if uid in freed_uids or pods.get(uid) != pod:
                del self._rejected[uid]

    async def _replace(self, removed_uids: tuple[str, ...], added_manifests: tuple[ManifestPod, ...]) -> None:
        """Pass changes to the queue; the next scan retries changes that the queue does not accept."""
        try:
            pods = [(manifest.pod, manifest.file) for manifest in added_manifests]
            results = await self.queue.run(Transaction.replace_pods, removed_uids, pods)
        except (NotReadyError, BusyError) as error:
            if isinstance(error, LedgerFullError) and len(removed_uids) + len(added_manifests) > 1:
                for uid in removed_uids:
                    await self._replace((uid,), ())
                for manifest in added_manifests:
                    await self._replace((), (manifest,))
            else:
                self._set_queue_problem(str(error))
            return
        problem = ""
        for manifest, result in zip(added_manifests, results, strict=True):
            problem = self._note_result(manifest, result) or problem
        self._set_queue_problem(problem)

    def _note_result(self, manifest: ManifestPod, result: AdmissionResult | Exception) -> str:
        """Remember a rejected pod; return why a pod must be retried, if it must."""
        if isinstance(result, BusyError | NotReadyError):
            return str(result)
        if isinstance(result, Exception):
            self.log.warning("manifest", detail=f"{manifest.file}: {result}")
        if isinstance(result, Exception) or result.pod_view is None or result.pod_view.source != manifest.file:
            why = ": another pod has its uid"
            if isinstance(result, Exception):
                why = f": {result}"
            elif rejection := result.decision.rejection:
                why = f" is rejected: {rejection.reason}: {rejection.message}"
            name = f"pod {manifest.pod.namespace}/{manifest.pod.name}"
            self._rejected[manifest.pod.uid] = manifest.pod, f"{manifest.file}: {name}{why}"
        return ""

    def _set_queue_problem(self, why: str) -> None:
        if why and why != self._queue_problem:
            self.log.warning("manifest", detail=f"manifests cannot be applied now: {why}")
        self._queue_problem = why

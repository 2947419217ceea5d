"""The audit of containers: compare what the NRI plugin of this node gave them with what the kernel reports."""

from collections.abc import Callable, Iterator
from pathlib import Path

from alignup import atomic_files
from alignup.align import bits
from alignup.align.errors import FileError
from alignup.documents import codec
from alignup.documents.nri_placements import FILE, REFRESH, PlacedContainerDocument, PlacementsDocument
from alignup.run import cgroup
from alignup.run.audit import AuditReport, Drift, DriftKind, audit_runs
from alignup.run.process import PROC, ProcessIdentity
from alignup.run.registry import RunProcesses
from alignup.run.request import RunRecord

_LATE = 3 * REFRESH  #: seconds without a sign of life
_NRI = "nri"


def audit_containers(directory: Path, *, now: float, pause: Callable[[], None]) -> AuditReport:
    """Audit the containers of the plugin with this *directory*; ``FileError`` if it has written nothing there.

    The file may be a moment behind the containers, so that drift counts only if it is still there after a *pause*.
    """
    first = _audit_once(directory, now)
    if not first.drifts:
        return first
    pause()
    second = _audit_once(directory, now)
    keys = {drift.key for drift in first.drifts}
    return second._replace(drifts=tuple(drift for drift in second.drifts if drift.key in keys))


def _audit_once(directory: Path, now: float) -> AuditReport:
    text = atomic_files.read(directory / FILE)
    if text is None:
        raise FileError(f"{directory / FILE}: no such file; start 'alignup nri' with --state-dir {directory}")
    document = codec.decode(text, PlacementsDocument)
    runs = tuple(_run(container, _processes(container.id)) for container in document.containers)
    present = tuple(run for run in runs if run.pids)  # the others have ended, or have not started
    return AuditReport(present, (*_plugin_drift(document, now), *audit_runs(present)))


def _plugin_drift(document: PlacementsDocument, now: float) -> Iterator[Drift]:
    title = f"alignup nri --mode {document.mode}"
    if now - document.written > _LATE:
        silent = f"no sign of life for {now - document.written:.0f} s"
        yield Drift(_NRI, title, DriftKind.DECISION, "the plugin", "running", silent)
    elif document.problem:
        actual = f"not connected ({document.problem}): containers keep what they have"
        yield Drift(_NRI, title, DriftKind.DECISION, "the runtime", "connected", actual)
    for pod, reason in document.unaligned.items():
        yield Drift(_NRI, pod, DriftKind.DECISION, pod, "aligned", f"not aligned: {reason}")


def _run(container: PlacedContainerDocument, pids: tuple[int, ...]) -> RunProcesses:
    cpusets = (cgroup.cpuset_directory(PROC / str(pid)) for pid in pids)
    record = RunRecord(
        uid=container.id,
        name=f"{container.pod}/{container.container}",
        runner=ProcessIdentity(0, 0, "", 0),
        command=(),
        since=0.0,
        cpus=bits.parse(container.cpus),
        exclusive=container.exclusive,
        memory=bits.parse(container.memory_nodes),
        cgroup=next(filter(None, cpusets), None),
    )
    return RunProcesses(record, pids)


def _processes(container: str) -> tuple[int, ...]:
    """Return the processes of a container: processes in cgroups with the container id in their names."""
    pids = []
    for path in PROC.glob("[0-9]*/cgroup"):
        try:
            lines = path.read_text("utf-8", "replace").splitlines()
        except OSError:  # it has ended
            continue
        if any(container in line.rpartition("/")[2] for line in lines):
            pids.append(int(path.parent.name))
    return tuple(sorted(pids))

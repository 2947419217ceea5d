"""The openb trace, a public trace of a GPU cluster (Alibaba's cluster-trace-gpu-v2023): its nodes and its pods, as CSV.

The trace has no NUMA nodes and no Kubernetes objects, so both are made by these rules:

* A node has two sockets, each a NUMA node with half of the CPUs, memory and GPUs, if it has at least 16 CPUs; else one.
  The first half of an odd number of GPUs is the larger one. Cores have two CPUs if the CPUs of a socket are even. The
  distance between the two is 21.
* The GPU model becomes the label ``nvidia.com/gpu.product``, and the GPU types that a pod accepts its node selector.
* Pods of class LS and Guaranteed are Guaranteed, with whole CPUs: fractions are rounded up. All others request without
  limits and share CPUs. In a file without the column ``qos``, all pods are of class LS. A part of a GPU counts as a
  whole one.
* A pod runs from its scheduling to its deletion, or from its creation if it was never scheduled; at least a second.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from alignup.align.errors import TraceError
from alignup.align.host import Settings
from alignup.align.machine import Device, Distances, Machine
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.names import CPU, MEMORY
from alignup.align.workload.validation import accept
from alignup.machines import synthetic
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.trace import read_bytes

GPU = "nvidia.com/gpu"
MODEL_LABEL = "nvidia.com/gpu.product"
LOCAL, REMOTE = 10, 21  #: distances of NUMA nodes

_NODE_FIELDS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_FIELDS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
_GUARANTEED = {"LS", "Guaranteed"}
_TWO_SOCKETS = 16  #: CPUs from which on a node has two


class _NodeShape(NamedTuple):
    cpus: int
    memory: int  #: MiB
    gpus: int
    model: str


def is_openb(path: Path) -> bool:
    """Return whether a file looks like one of the trace."""
    return path.suffix == ".csv"


def read_nodes(path: Path, settings: Callable[[Machine], Settings]) -> tuple[HostGroup, ...]:
    """Return the nodes of a file, in groups of equal ones; *settings* returns the settings for a machine."""
    names_by_shape: dict[_NodeShape, list[str]] = {}
    for row in _rows(path, _NODE_FIELDS):
        cpus, memory, gpus = row.whole("cpu_milli") // 1000, row.whole("memory_mib"), row.whole("gpu")
        shape = _NodeShape(cpus, memory, gpus, row.text("model") or "none")
        if not shape.cpus or not shape.memory:
            raise row.error("cpu_milli", "a node must have CPUs and memory")
        names_by_shape.setdefault(shape, []).append(row.text("sn"))
    groups = []
    for shape, names in names_by_shape.items():
        machine = build_machine(shape.cpus, shape.memory, shape.gpus)
        group = HostGroup(
            name=f"{shape.model}-{shape.cpus}c-{shape.memory >> 10}g-{shape.gpus}",
            machine=machine,
            settings=settings(machine),
            count=len(names),
            labels={MODEL_LABEL: shape.model},
            names=tuple(names),
        )
        groups.append(group)
    return tuple(groups)


def build_machine(cpus: int, memory: int, gpus: int) -> Machine:
    """Return a machine with so many CPUs, MiB and GPUs, with NUMA nodes by the rule above."""
    sockets = 2 if cpus >= _TWO_SOCKETS and cpus % 2 == 0 else 1
    socket_cpus = cpus // sockets
    threads = 2 if socket_cpus % 2 == 0 else 1
    text = f"pack:{sockets} numa:1(memory={memory // sockets}MiB) core:{socket_cpus // threads} pu:{threads}"
    socket_gpus = (gpus + sockets - 1) // sockets
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // max(socket_gpus, 1)) for number in range(gpus))
    distances = Distances.of_rows({0: (LOCAL, REMOTE), 1: (REMOTE, LOCAL)}) if sockets == 2 else None
    return replace(synthetic.parse(text), devices=devices, distances=distances)


def read_pods(path: Path, *, note: Callable[[str], None] = lambda _: None) -> tuple[PodSubmission, ...]:
    """Return the pods of a file, in the order of their creation; *note* is called with what the file does not say."""
    shapes: dict[tuple[object, ...], Pod] = {}
    submissions: list[PodSubmission] = []
    for row in _rows(path, _POD_FIELDS):
        milli, memory, gpus = row.whole("cpu_milli"), row.whole("memory_mib"), row.whole("num_gpu")
        if not row.has("qos") and not submissions:
            note(f"{path}: there is no column qos: all pods count as Guaranteed (LS)")
        guaranteed = not row.has("qos") or row.text("qos") in _GUARANTEED
        key = (milli, memory, gpus, guaranteed)
        if key not in shapes:
            shapes[key] = build_pod(milli, memory, gpus, guaranteed=guaranteed)
        name = row.text("name")
        creation = row.number("creation_time")
        start = row.number("scheduled_time") if row.text("scheduled_time") else creation
        duration = max(row.number("deletion_time") - start, 1.0)
        models = tuple(sorted(filter(None, row.text("gpu_spec").split("|"))))
        selector = {MODEL_LABEL: models} if models else {}
        submissions.append(PodSubmission(creation, replace(shapes[key], name=name, uid=name), duration, selector))
    repeated_count = len(submissions) - len({submission.pod.uid for submission in submissions})
    if repeated_count:
        raise TraceError(f"{repeated_count} pods have the name of another one", file=str(path))
    return tuple(sorted(submissions, key=attrgetter("time")))


def build_pod(milli: int, memory: int, gpus: int, *, guaranteed: bool) -> Pod:
    """Return a pod that requests so many thousandths of CPUs, MiB and GPUs."""
    amounts = {
        CPU: Quantity.of(-(-milli // 1000)) if guaranteed else Quantity.parse(f"{milli}m"),
        MEMORY: Quantity(memory << 20, format=QuantityFormat.BINARY_SI),
    }
    devices = {GPU: Quantity.of(gpus)} if gpus else {}
    limits = {**amounts, **devices} if guaranteed else devices
    return accept(Pod(name="pod", containers=(Container("app", Resources({**amounts, **devices}, limits)),)))


class _Row:
    def __init__(self, path: Path, line: int, values: dict[str, str | None]) -> None:
        self._path = path
        self._line = line
        self._values = values

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        return (self._values.get(name) or "").strip()

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not isfinite(value) or value < 0:
            raise self.error(name, f"{text or 'nothing'} is not a number, 0 or more")
        return value

    def whole(self, name: str) -> int:
        return int(self.number(name))

    def error(self, name: str, message: str) -> TraceError:
        return TraceError(message, file=str(self._path), line=self._line, field=name)


def _rows(path: Path, columns: Iterable[str]) -> Iterator[_Row]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError("not a text in UTF-8", file=str(path)) from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing_columns = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing_columns:
        message = f"not a file of openb: column {missing_columns[0]} is missing; expected {', '.join(columns)}"
        raise TraceError(message, file=str(path), line=1)
    try:
        for values in reader:
            yield _Row(path, reader.line_num, values)
    except csv.Error as error:
        raise TraceError(str(error), file=str(path), line=reader.line_num) from error

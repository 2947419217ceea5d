"""A KubeletConfiguration file is read: decoded, completed with defaults, and validated, as the kubelet does it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from alignup.align.bits import quote
from alignup.align.errors import ConfigurationError, DocumentError, Problem
from alignup.kube import documents, feature_gates
from alignup.kube.configuration import validation
from alignup.kube.configuration.model import DEFAULT_EVICTION_HARD, Configuration, StartupStage
from alignup.kube.configuration.schema import SchemaFindings, read_fields, suggest_field
from alignup.kube.documents import Document

_VERSION = "kubelet.config.k8s.io/v1beta1"
_KIND = "KubeletConfiguration"

#: The fields that are kept, and what they are called here.
_KEPT: Mapping[str, str] = {
    "topologyManagerPolicy": "topology_manager_policy",
    "topologyManagerScope": "topology_manager_scope",
    "topologyManagerPolicyOptions": "topology_manager_policy_options",
    "cpuManagerPolicy": "cpu_manager_policy",
    "cpuManagerPolicyOptions": "cpu_manager_policy_options",
    "cpuManagerReconcilePeriod": "cpu_manager_reconcile_period",
    "memoryManagerPolicy": "memory_manager_policy",
    "reservedMemory": "reserved_memory",
    "reservedSystemCPUs": "reserved_system_cpus",
    "systemReserved": "system_reserved",
    "kubeReserved": "kube_reserved",
    "systemReservedCgroup": "system_reserved_cgroup",
    "kubeReservedCgroup": "kube_reserved_cgroup",
    "enforceNodeAllocatable": "enforce_node_allocatable",
    "evictionHard": "eviction_hard",
    "mergeDefaultEvictionSettings": "merge_default_eviction_settings",
    "cgroupsPerQOS": "cgroups_per_qos",
    "qosReserved": "qos_reserved",
    "maxPods": "max_pods",
    "podsPerCore": "pods_per_core",
    "localStorageCapacityIsolation": "local_storage_capacity_isolation",
    "featureGates": "feature_gates",
    "seccompDefault": "seccomp_default",
    "containerLogMaxSize": "container_log_max_size",
    "containerLogMaxFiles": "container_log_max_files",
    "cpuCFSQuota": "cpu_cfs_quota",
    "cpuCFSQuotaPeriod": "cpu_cfs_quota_period",
    "podPidsLimit": "pod_pids_limit",
    "singleProcessOOMKill": "single_process_oom_kill",
}

_SHOWN = 100  # warnings of one sort
_LONG = 200  # characters of a name that are shown

#: Fields for which an empty text or a zero is as good as nothing.
_FILLED = (
    "topologyManagerPolicy",
    "topologyManagerScope",
    "cpuManagerPolicy",
    "memoryManagerPolicy",
    "maxPods",
    "containerLogMaxSize",
)


def read(text: str | bytes, *, name: str = "kubelet.yaml") -> Configuration:
    """The configuration *text* holds, with defaults; a :class:`ConfigurationError` where the kubelet would refuse it.

    Of several YAML documents only the first is read, as there.
    """
    is_json = text.lstrip()[:1] in ("{", b"{")
    document = _document(text, is_json=is_json, name=name)
    found = SchemaFindings()
    fields = _identified(document.value if document else None, found)
    if found.problems:
        raise ConfigurationError(found.problems, stage=StartupStage.LOAD, source=name)
    if troubles := feature_gates.problems(fields.get("featureGates", {})):
        raise ConfigurationError(
            troubles, stage=StartupStage.DEFAULTING_PANIC, source=name, advice=_gate_advice(troubles)
        )
    repeated = document.repeated if document else ()
    configuration = Configuration(
        **_completed(fields),
        warnings=(*_unknown(found.unknown), *_repeated(repeated[:_SHOWN], lines=not is_json)),
        given=frozenset(fields),
        source=name,
    )
    if troubles := validation.problems(configuration):
        raise ConfigurationError(troubles, stage=StartupStage.VALIDATION, source=name)
    return configuration


def _document(text: str | bytes, *, is_json: bool, name: str) -> Document | None:
    """The first document of *text*; ``None`` when that holds nothing."""
    if not text:
        raise _unreadable("the file is empty", name)
    try:
        found = _first_documents(text)
        if is_json:
            # What begins like JSON has to be JSON all through, though YAML could make sense of it.
            json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except DocumentError as error:
        raise _unreadable(str(error), name) from None
    except ValueError as error:
        raise _unreadable(f"begins like JSON, but is not: {error}", name) from None
    return found[0] if found and found[0].number == 1 else None


def _first_documents(text: str | bytes) -> tuple[Document, ...]:
    """The documents of *text*, or those before the one that cannot be read."""
    try:
        return documents.read(text)
    except DocumentError as error:
        if error.document == 1:
            raise
        if isinstance(text, bytes):
            text = text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
        lines = text.splitlines(keepends=True)
        ends = (number for number, line in enumerate(lines[: error.line]) if line.startswith(("---", "...")))
        return _first_documents("".join(lines[: max(ends, default=0)]))


def _identified(value: object, found: SchemaFindings) -> dict[str, Any]:
    """The fields of a document that says it is a KubeletConfiguration; problems are noted."""
    if value is not None and not isinstance(value, Mapping):
        found.wrong(value, "", "an object")
        return {}
    document: Mapping[str, Any] = value or {}
    head = SchemaFindings()
    said = read_fields(head, {key: document[key] for key in ("kind", "apiVersion") if key in document})
    found.problems += head.problems
    if found.problems:
        return {}
    kind, version = said.get("kind", ""), said.get("apiVersion", "")
    if not kind:
        found.problems.append(Problem("kind", f"is missing: write kind: {_KIND}"))
    elif not version:
        found.problems.append(Problem("apiVersion", f"is missing: write apiVersion: {_VERSION}"))
    elif (kind, version) != (_KIND, _VERSION):
        what = f"no kind {quote(kind)} is registered for version {quote(version)}, only {_KIND} for {_VERSION}"
        found.problems.append(Problem("kind" if kind != _KIND else "apiVersion", what))
    else:
        fields = read_fields(found, document)
        return {name: one for name, one in fields.items() if name not in said}
    return {}


def _completed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are kept, under the names they have here, without those to which a default applies."""
    kept = {name: fields[name] for name in _KEPT if name in fields}
    for name in _FILLED:
        if not kept.get(name, True):
            del kept[name]
    if "cpuManagerReconcilePeriod" in kept and not kept["cpuManagerReconcilePeriod"].nanoseconds:
        del kept["cpuManagerReconcilePeriod"]
    if kept.get("mergeDefaultEvictionSettings") and "evictionHard" in kept:
        kept["evictionHard"] = {**DEFAULT_EVICTION_HARD, **kept["evictionHard"]}
    return {_KEPT[name]: one for name, one in kept.items()}


def _unknown(paths: Sequence[str]) -> Iterator[str]:
    for path in paths[:_SHOWN]:
        meant = None if "." in path else suggest_field(path[:_LONG])
        hint = f"; {meant} was meant?" if meant else ""
        name = path if len(path) <= _LONG else f"{path[:_LONG]}..."
        yield f"unknown field {quote(name)} is overlooked by the kubelet{hint}"
    if len(paths) > _SHOWN:
        yield f"{len(paths) - _SHOWN} more unknown fields are overlooked by the kubelet"


def _repeated(keys: Iterable[documents.DuplicateKey], *, lines: bool) -> Iterator[str]:
    for one in keys:
        where = f"line {one.line}: " if lines else ""
        yield f"{where}key {quote(one.key)} is set already; the last one counts"


def _gate_advice(troubles: Iterable[Problem]) -> str | None:
    """What to do about gates that are unknown, which most often were dropped since."""
    names = [one.field[len("featureGates[") : -1] for one in troubles if one.what.startswith("unrecognized")]
    return f"leave out {', '.join(names)}: Kubernetes 1.37 has no such feature gate" if names else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unreadable(what: str, name: str) -> ConfigurationError:
    return ConfigurationError([Problem("", what)], stage=StartupStage.LOAD, source=name)

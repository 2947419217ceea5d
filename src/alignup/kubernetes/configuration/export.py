"""Writes the part of a configuration that affects alignment, as a KubeletConfiguration that means the same."""

from dataclasses import MISSING, fields
from typing import Any

from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.settings import FEATURE_GATES
from alignup.kubernetes.configuration.load import KIND, VERSION
from alignup.kubernetes.configuration.model import Configuration

_FIELDS = {
    "topologyManagerPolicy": "topology_manager_policy",
    "topologyManagerScope": "topology_manager_scope",
    "topologyManagerPolicyOptions": "topology_manager_policy_options",
    "cpuManagerPolicy": "cpu_manager_policy",
    "cpuManagerPolicyOptions": "cpu_manager_policy_options",
    "memoryManagerPolicy": "memory_manager_policy",
    "reservedMemory": "reserved_memory",
    "reservedSystemCPUs": "reserved_system_cpus",
    "systemReserved": "system_reserved",
    "kubeReserved": "kube_reserved",
    "evictionHard": "eviction_hard",
    "maxPods": "max_pods",
    "podsPerCore": "pods_per_core",
    "featureGates": "feature_gates",
}


def alignment_fields(configuration: Configuration) -> dict[str, Any]:
    """Return the fields that differ from the kubelet's defaults, with apiVersion and kind, as plain JSON values."""
    document: dict[str, Any] = {"apiVersion": VERSION, "kind": KIND}
    defaults = {
        one.name: one.default_factory() if one.default_factory is not MISSING else one.default
        for one in fields(Configuration)
    }
    for name, attribute in _FIELDS.items():
        value = getattr(configuration, attribute)
        if value != defaults[attribute]:
            document[name] = _plain(name, value)
    return document


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
    if name == "reservedMemory":
        return [_reserved_memory(entry) for entry in value]
    if name == "featureGates":  # others do not affect alignment
        return {gate: on for gate, on in value.items() if gate in FEATURE_GATES}
    return dict(value) if isinstance(value, dict) else value


def _reserved_memory(entry: ReservedMemory) -> dict[str, Any]:
    return {"numaNode": entry.node, "limits": {name: str(amount) for name, amount in entry.limits.items()}}

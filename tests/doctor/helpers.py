"""Helpers for tests of the doctor: short configurations, findings by severity, vectors, the kubelet's verdict."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from alignup.align.errors import StateError
from alignup.align.machine import Distances, Machine
from alignup.align.memory.ledger import MemoryLedger
from alignup.doctor.configuration import ConfigurationCheck, ManagerConfig, check_configuration
from alignup.doctor.findings import Finding, Severity
from alignup.kubernetes.kubelet_files import state_files
from alignup.machines.synthetic import parse
from tests.conformance import harness
from tests.conformance.harness import Case

GIB = 1 << 30
SMT = "pack:2 numa:1 core:4 pu:2"  #: CPUs 0-15, siblings next to each other, two NUMA nodes
STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,1"}
MEMORY: dict[str, Any] = {
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "924Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}


def machine(shape: str = SMT, *, memory: int = 16 * GIB) -> Machine:
    """A machine with all facts, including the distances of its nodes."""
    made = parse(shape, memory=memory)
    ids = [node.id for node in made.nodes]
    return replace(made, distances=Distances({a: {b: 10 if a == b else 21 for b in ids} for a in ids}))


def text(**fields: Any) -> bytes:
    """A configuration with these fields."""
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    return json.dumps(head | fields).encode()


def check(on: Machine | None = None, **fields: Any) -> ConfigurationCheck:
    return check_configuration(text(**fields), on or machine(), name="kubelet.yaml")


def by_severity(severity: Severity, findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is severity]


def cases(request: pytest.FixtureRequest, file: str) -> Iterator[Case]:
    """The cases of a vector file; another set than our own may not have it."""
    path = request.config.getoption("--vectors") / file
    if not path.exists() and harness.OWN_VECTORS not in path.parents:
        pytest.skip(f"this set of vectors has no {path.name}")
    reader = harness.cases if path.suffix == ".gz" else harness.plain_cases
    for _, case in reader(path):
        yield case


def kubelet_error(name: str, data: bytes, config: ManagerConfig) -> str:
    """The kubelet's error about a state file, from the parser and the startup rules alone."""
    try:
        if name == state_files.CPU_FILE:
            assert config.cpus
            cpus = state_files.parse_cpu_state(
                data, configured_policy=config.cpu_policy, gates=config.gates, path="cpus"
            )
            config.cpus.restore_ledger(cpus.default, cpus.entries, pod_held=cpus.pod_entries)
        elif name == state_files.MEMORY_FILE:
            assert config.memory is not None
            memory = state_files.parse_memory_state(
                data, configured_policy=config.memory_policy, gates=config.gates, path="memory"
            )
            stored = MemoryLedger(memory.machine_state, memory.entries, memory.pod_entries)
            stored.restored(config.memory, pod_level=config.pod_level)
    except StateError as rejected:
        return str(rejected)
    return ""

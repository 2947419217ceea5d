"""The CPUs that a kubelet shares among containers, and the CPUs that it gave away, from its state files.

The kubelet writes ``cpu_manager_state`` while it admits a pod, before the pod's containers are created. It takes CPUs
from the pool before it adds the entry of a container, so that every state of the file can be trusted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from alignup import atomic_files
from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import FileError, StateError
from alignup.align.machine import Machine
from alignup.align.settings import FeatureGates
from alignup.align.shared_pool import SharedPool
from alignup.align.workload.names import MEMORY
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FILE,
    MEMORY_FILE,
    PODS_GATE,
    CpuState,
    KnownFiles,
    MemoryState,
    decode_once,
    parse_cpu_state,
    parse_memory_state,
)

NONE_POLICY = "none"  #: of the CPU manager, which gives no CPUs away then

#: With the gate the kubelet stores CPUs of whole pods; without it, it checks some older files in another way.
_GATES = (FeatureGates({PODS_GATE: True}), FeatureGates())


@dataclass(frozen=True, slots=True)
class KubeletPool:
    """The shared CPUs, and the holders of others."""

    shared: SharedPool
    policy: str
    exclusive: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  #: pod uid → container
    exclusive_pods: Mapping[str, object] = field(default_factory=dict)  #: by uid: with CPUs for the pod as a whole
    pinned: Mapping[str, Mapping[str, NodeSet]] = field(default_factory=dict)  #: pod uid → container → memory nodes

    @property
    def all_cpus(self) -> CpuSet:
        return bits.of(cpu.id for cpu in self.shared.machine.cpus)

    def shares(self, uid: str, container: str) -> bool:
        """Return whether a container has no CPUs of its own, nor its pod."""
        return container not in self.exclusive.get(uid, {}) and uid not in self.exclusive_pods


class KubeletPoolReader:
    """Reads the pool of *machine* from the files in *directory*."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        self._directory = directory
        self._machine = machine
        self._files: KnownFiles = {}
        self._cpus = bits.of(cpu.id for cpu in machine.cpus)
        self._states: tuple[CpuState, MemoryState | None] | None = None  #: of the last pool
        self._pool: KubeletPool | None = None

    def read(self) -> KubeletPool:
        """Return the pool, the same object if nothing has changed.

        ``FileError`` or ``StateError`` if the files do not describe the pool.
        """
        cpu: CpuState | None = self._read_file(CPU_FILE, parse_cpu_state)
        if cpu is None:
            raise FileError(
                f"{self._directory / CPU_FILE}: no such file; start the kubelet, or name its directory (--kubelet-dir)"
            )
        memory: MemoryState | None = self._read_file(MEMORY_FILE, parse_memory_state)
        if self._pool is None or self._states is None or self._states[0] is not cpu or self._states[1] is not memory:
            self._pool = self._pool_of(cpu, memory or MemoryState(policy=""))
            self._states = (cpu, memory)
        return self._pool

    def _pool_of(self, cpu: CpuState, memory: MemoryState) -> KubeletPool:
        cpus = self._cpus if cpu.policy == NONE_POLICY else cpu.default & self._cpus
        nodes = memory.machine_state.items()
        free = {node: state.tables[MEMORY].free for node, state in nodes if MEMORY in state.tables}
        exclusive_cpus = {
            uid: {name: bits.union(block.nodes for block in blocks) for name, blocks in containers.items()}
            for uid, containers in memory.entries.items()
        }
        shared_pool = SharedPool(self._machine, cpus, free)
        return KubeletPool(shared_pool, cpu.policy, cpu.entries, cpu.pod_entries, exclusive_cpus)

    def _read_file(self, name: str, parse: Any) -> Any:  # noqa: ANN401 - of either file
        path = self._directory / name
        text = atomic_files.read(path)
        if text is None:
            return None
        problem: StateError | None = None
        for gates in _GATES:
            try:
                return decode_once(partial(parse, configured_policy=None, gates=gates), text, path, self._files)
            except StateError as error:
                problem = problem or error
        raise problem or StateError(str(path))

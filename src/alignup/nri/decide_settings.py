"""The settings of decide mode, and the kubelets beside which it may run."""

from dataclasses import replace

from alignup.align.cpus.options import CpuPolicy
from alignup.align.errors import StateError
from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload.names import CPU, MEMORY
from alignup.kubernetes.configuration import Configuration, host_settings

_NONE = {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}


def check_managers(kubelet: Configuration) -> None:
    """``StateError`` if the kubelet itself gives CPUs or memory away; it says what to change."""
    policies = {"cpuManagerPolicy": kubelet.cpu_manager_policy, "memoryManagerPolicy": kubelet.memory_manager_policy}
    wrong = {field: policy for field, policy in policies.items() if policy != _NONE[field]}
    if wrong:
        present = ", ".join(f"{field}: {policy}" for field, policy in wrong.items())
        required_settings = ", ".join(f"{field}: {_NONE[field]}" for field in wrong)
        raise StateError(
            f"the kubelet has {present}, and would undo what decide mode does: set {required_settings}, remove its "
            "cpu_manager_state and memory_manager_state, and restart it; or use --mode assist"
        )


def decide_settings(kubelet: Configuration, machine: Machine) -> Settings:
    """Return static managers with the reservations of *kubelet*, and at least one reserved CPU.

    The kubelet has checked already that a pod fits the node as a whole.
    """
    settings = host_settings(kubelet, machine, limit_nodes=False)
    view = machine.kubelet_view()
    reservation = {**settings.reservation, CPU: max(settings.reservation.get(CPU, Quantity.ZERO), Quantity(1))}
    sizes = {name: amount for name, amount in reservation.items() if name == MEMORY}
    managed = MEMORY in sizes and sum(node.memory or 0 for node in view.nodes) > sizes[MEMORY].value()
    return replace(
        settings,
        topology=TopologySettings(policy=Policy.BEST_EFFORT, limit_nodes=False),
        cpus=replace(settings.cpus, policy=CpuPolicy.STATIC, options={}, reservation=reservation[CPU]),
        memory_policy=MemoryPolicy.STATIC if managed else MemoryPolicy.NONE,
        reserved_memory=reserved_memory.propose_reserved_memory(sizes, view) if managed else (),
        reservation=reservation,
        fit_check=False,
    )

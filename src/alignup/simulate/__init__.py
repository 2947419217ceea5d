"""The simulator: workloads on one node or on a cluster, comparisons of settings, and sweeps.

    alignup.simulate.run(host, pods)                        # which pods are admitted, and where
    alignup.simulate.compare(host, pods, "policy", "scope") # the same under every combination of settings

A workload is pods that arrive and depart (``arrivals``), read from a trace (``trace``, ``openb``) or generated
(``generate``). ``node_simulation`` runs it on one host, ``compared_settings`` on one host under many settings, and
``cluster_simulation`` on the hosts of a cluster, for which a scheduler of ``schedulers`` chooses. ``sweeps`` runs many
cluster simulations, with the engines of ``executors``. All kubelets are ``align.host.Host``, and the
strategy ``alignup`` is ``placement.cluster.Cluster``, as in ``alignup schedule``.
"""

from collections.abc import Iterable

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.simulate import compared_settings, node_simulation
from alignup.simulate.arrivals import PodArrival, PodDeparture, WorkloadEvent
from alignup.simulate.compared_settings import Comparison
from alignup.simulate.node_simulation import SimulationResult

__all__ = ["Comparison", "PodArrival", "PodDeparture", "SimulationResult", "compare", "run"]


def run(host: Host, workload: Iterable[Pod | WorkloadEvent], *, seed: int = 0) -> SimulationResult:
    """Simulate *workload* on *host*, which stays as it is.

    The workload is pods, one a second, or events with their times (``PodArrival``, ``PodDeparture``). Devices that a
    kubelet or its plugins choose at random are drawn with *seed*.
    """
    return node_simulation.run(host.copy(), _events(workload), seed=seed)


def compare(host: Host, workload: Iterable[Pod | WorkloadEvent], *dimensions: str, seed: int = 0) -> Comparison:
    """Simulate *workload* on the empty machine of *host* under every combination of *dimensions*, and rank them.

    A dimension is ``policy``, ``scope``, ``topology-options``, ``cpu-policy``, ``cpu-options`` or ``memory-policy``
    for all values, or with the values to try: ``policy=restricted|single-numa-node``.
    """
    variants = compared_settings.build_grid(host.settings, dimensions or ("policy",), machine=host.machine)
    return compared_settings.compare(host.machine, variants, _events(workload), seed=seed)


def _events(workload: Iterable[Pod | WorkloadEvent]) -> list[WorkloadEvent]:
    return [PodArrival(float(number), item) if isinstance(item, Pod) else item for number, item in enumerate(workload)]

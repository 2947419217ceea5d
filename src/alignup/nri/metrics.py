"""The metrics of ``alignup nri``."""

from collections import Counter
from collections.abc import Mapping
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge

from alignup.align.shared_pool import PoolShare
from alignup.nri.kubelet_pool import KubeletPool


class NriMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        gauge = partial(Gauge, registry=self.registry)
        self.connected = gauge("alignup_nri_connected", "Whether the container runtime sends events.")
        self.updates = prometheus_client.Counter(
            "alignup_nri_updates", "Changes to running containers, by result.", ["result"], registry=self.registry
        )
        self.decisions = prometheus_client.Counter(
            "alignup_nri_decisions",
            "Decisions on pods in decide mode, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.unaligned = gauge("alignup_nri_unaligned_pods", "Pods that run without a decision in decide mode.")
        self._cpus = gauge("alignup_nri_pool_cpus", "CPUs of the shared pool, by NUMA node.", ["numa_node"])
        self._pods = gauge(
            "alignup_nri_shared_pods", "Pods in the shared pool, by the number of their NUMA nodes.", ["numa_nodes"]
        )
        for result in ("ok", "error"):
            self.updates.labels(result)
        for outcome in ("admitted", "rejected"):
            self.decisions.labels(outcome)

    def show(self, pool: KubeletPool, division: Mapping[str, PoolShare]) -> None:
        """Set what the last division shows."""
        self._cpus.clear()
        for node, cpus in pool.shared.node_cpus.items():
            self._cpus.labels(str(node)).set(cpus.bit_count())
        self._pods.clear()
        for width, count in Counter(share.nodes.bit_count() for share in division.values()).items():
            self._pods.labels(str(width)).set(count)

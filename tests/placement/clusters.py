"""Short ways to report hosts and to build pods for tests of clusters."""

from dataclasses import replace
from typing import Any

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from tests.align.hosts import make_host
from tests.strategies_pods import container


def report(name: str, host: Host, sequence: int = 1, **more: Any) -> HostReport:
    return HostReport(
        host=name, machine=host.machine, settings=host.settings, ledger=host.ledger, sequence=sequence, **more
    )


def cluster_of(**hosts: Host) -> Cluster:
    """A cluster in which a report about every host has arrived."""
    cluster = Cluster()
    for name, host in hosts.items():
        cluster.confirm(report(name, host))
    return cluster


def shared_pod(uid: str, cpu: str = "500m", priority: int | None = None) -> Pod:
    """A pod on the shared CPUs, without resources of its own."""
    return Pod(name=uid, uid=uid, containers=(container("app", {"cpu": cpu}),), priority=priority)


def host_with(*pods: Pod, **settings: Any) -> Host:
    """Two nodes, with 3 and 4 CPUs for pods; *pods* are admitted in this order."""
    host = make_host(**settings)
    for wanted in pods:
        assert host.admit(wanted).admitted, wanted.uid
    return host


def important(pod: Pod, priority: int = 100) -> Pod:
    return replace(pod, priority=priority)

"""A table with one row per pod of a cluster simulation."""

from collections.abc import Iterator

from alignup.simulate.cluster.simulation import ClusterSimulation

COLUMNS = ("created", "namespace", "name", "priority", "gang", "outcome", "node", "started", "waited", "rejections")


def rows(simulation: ClusterSimulation) -> Iterator[dict[str, str]]:
    """One row per pod in the order of creation, with a text for each of ``COLUMNS``."""
    for one in simulation.runs:
        submission, started = one.submission, bool(one.host)
        yield {
            "created": _seconds(submission.time),
            "namespace": submission.pod.namespace,
            "name": submission.pod.name,
            "priority": str(submission.priority),
            "gang": submission.gang,
            "outcome": "started" if started else "failed" if one.failed else "pending",
            "node": one.host,
            "started": _seconds(one.started) if started else "",
            "waited": _seconds(one.started - submission.time) if started else "",
            "rejections": str(one.rejections),
        }


def _seconds(time: float) -> str:
    return f"{time:.3f}".rstrip("0").rstrip(".")

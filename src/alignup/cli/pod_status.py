"""Pods of the agent for the terminal: selecting one by name, and its columns as ``kubectl get pods`` prints them."""

from collections.abc import Iterable, Mapping
from typing import Any

from alignup.cli.agent_client import AgentError, Document
from alignup.cli.app import InputError


def find_pod(name: str, pods: Iterable[Document]) -> Document:
    """Return the one pod whose uid, name, or ``namespace/name`` is *name*."""
    found = [pod for pod in pods if name in (pod["uid"], pod["name"], full_name(pod))]
    if not found:
        raise AgentError(f"pod {name} not found", advice="List the pods with 'alignup ps'.")
    exact = [pod for pod in found if pod["uid"] == name] or found
    if len(exact) > 1:
        uids = ", ".join(pod["uid"] for pod in exact)
        raise InputError(f"{name} matches {len(exact)} pods", advice=f"Give the uid of one of them: {uids}.")
    return exact[0]


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['namespace']}/{pod['name']}"


def status(pod: Document) -> str:
    """Return the STATUS column: ``admitted``, or ``waiting`` with the position in the queue."""
    return f"{pod['status']} ({pod['position']})" if pod["position"] else str(pod["status"])


def detail(pod: Document) -> str:
    """Return the resources of a pod, or why it is waiting."""
    return describe_outcome(pod["rejection"], pod["placements"])


def numa_nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    return ",".join(dict.fromkeys(one["hint"]["nodes"] for one in placements if one["hint"]["nodes"])) or "-"


def describe_outcome(rejection: Mapping[str, Any] | None, placements: Iterable[Mapping[str, Any]]) -> str:
    return f"{rejection['reason']}: {rejection['message']}" if rejection else describe_placements(placements)


def describe_placements(placements: Iterable[Mapping[str, Any]]) -> str:
    from alignup.align.decision import Placement  # noqa: PLC0415 - slow to import
    from alignup.align.explain import sentences  # noqa: PLC0415
    from alignup.align.hint import Hint  # noqa: PLC0415

    unused = Hint(None, preferred=True)
    given = [Placement.of_text(one["container"], unused, one["given"]) for one in placements]
    return sentences.describe_allocations(given)

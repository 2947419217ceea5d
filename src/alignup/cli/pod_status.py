"""Pods of the agent for the terminal: selecting one by name, and its columns as ``kubectl get pods`` prints them."""

from collections.abc import Iterable, Mapping
from typing import Any

from alignup.cli.app import FailureError, InputError
from alignup.cli.object_names import parse_object_name
from alignup.web.agent_client import Document


def find_pod(name: str, pods: Iterable[Document], namespace: str = "") -> Document:
    """Return the one pod whose uid, name, ``namespace/name`` or ``pod/name`` is *name*."""
    named = parse_object_name(name, namespace)
    matches = [pod for pod in pods if pod["uid"] == name or named.matches("Pod", pod["namespace"], pod["name"])]
    if not matches:
        raise FailureError(f"pod {name} not found", advice="List the pods with 'alignup ps'.")
    matches = [pod for pod in matches if pod["uid"] == name] or matches
    if len(matches) > 1:
        uids = ", ".join(pod["uid"] for pod in matches)
        raise InputError(f"{name} matches {len(matches)} pods", advice=f"Give the uid of one of them: {uids}.")
    return matches[0]


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['namespace']}/{pod['name']}"


def status(pod: Document) -> str:
    """Return the STATUS column: ``admitted``, or ``waiting`` with the position in the queue."""
    return f"{pod['status']} ({pod['position']})" if pod["position"] else str(pod["status"])


def numa_nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    return ",".join(filter(None, dict.fromkeys(placement["hint"]["nodes"] for placement in placements))) or "-"


def describe_outcome(rejection: Mapping[str, Any] | None, placements: Iterable[Mapping[str, Any]]) -> str:
    return f"{rejection['reason']}: {rejection['message']}" if rejection else describe_placements(placements)


def describe_placements(placements: Iterable[Mapping[str, Any]]) -> str:
    from alignup.align.decision import Placement  # noqa: PLC0415 - slow to import
    from alignup.align.explain import sentences  # noqa: PLC0415
    from alignup.align.hint import Hint  # noqa: PLC0415

    unused = Hint(None, preferred=True)
    allocations = [Placement.of_text(document["container"], unused, document["given"]) for document in placements]
    return sentences.describe_allocations(allocations)

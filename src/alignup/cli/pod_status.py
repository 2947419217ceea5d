"""Pods of the agent for the terminal: selected as for kubectl, with columns as ``kubectl get pods`` prints them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from alignup.cli.app import FailureError, InputError
from alignup.cli.object_names import parse_object_name, parse_object_names, parse_selector
from alignup.cli.options import flag_option, option
from alignup.web.agent_client import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPodOptions:
    namespace: str = option("NAME", "Namespace of the pods", "any", "-n", "--namespace")
    all_namespaces: bool = flag_option("Pods of all namespaces, which is the default", "-A", "--all-namespaces")
    selector: str | None = option("LABELS", "Pods with these labels, such as app=web", "", "-l", "--selector")


def select_pods(words: Sequence[str], pods: Sequence[Document], options: AgentPodOptions) -> list[Document]:
    """Return the pods that *words* name, or all, and that the options select.

    ``deployment/web`` and the like stand for the replicas that the agent got of it: ``web-0``, ``web-1``, and so on.
    """
    namespace = "" if options.all_namespaces else options.namespace or ""
    labels = parse_selector(options.selector or "")
    pods = [
        pod
        for pod in pods
        if namespace in ("", pod["namespace"]) and all(label.matches(pod.get("labels") or {}) for label in labels)
    ]
    if not words:
        return pods
    pods_by_uid: dict[str, Document] = {}
    for word, object_name in zip(_words(words), parse_object_names(words, namespace), strict=True):
        if object_name.kind == "Pod":
            pod = find_pod(word, pods, namespace)
            pods_by_uid[pod["uid"]] = pod
            continue
        replicas = [
            pod
            for pod in pods
            if object_name.namespace in ("", pod["namespace"])
            and re.fullmatch(rf"{re.escape(object_name.name)}-\d+", pod["name"])
        ]
        if not replicas:
            raise FailureError(f"{word}: no pods {object_name.name}-N found", advice="List the pods with 'alignup ps'.")
        pods_by_uid |= {pod["uid"]: pod for pod in replicas}
    return list(pods_by_uid.values())


def _words(words: Sequence[str]) -> list[str]:
    """Return ``pod/a pod/b`` for ``pod a b``, else *words* as they are."""
    object_names = parse_object_names(words)
    return list(words) if len(object_names) == len(words) else [f"{words[0]}/{word}" for word in words[1:]]


def find_pod(name: str, pods: Iterable[Document], namespace: str = "") -> Document:
    """Return the one pod whose uid, name, ``namespace/name`` or ``pod/name`` is *name*."""
    object_name = parse_object_name(name, namespace)
    matches = [pod for pod in pods if pod["uid"] == name or object_name.matches("Pod", pod["namespace"], pod["name"])]
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


def age(since: str, now: float) -> str:
    """Return the time from *since*, as RFC 3339, to *now* as kubectl prints ages: ``42s``, ``5m``, ``3h``, ``2d``."""
    seconds = max(0, int(now - datetime.fromisoformat(since).timestamp()))
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"


def numa_nodes(placements: Iterable[Mapping[str, Any]]) -> str:
    return ",".join(filter(None, dict.fromkeys(placement["hint"]["nodes"] for placement in placements))) or "-"


def describe_outcome(rejection: Mapping[str, Any] | None, placements: Iterable[Mapping[str, Any]]) -> str:
    return f"{rejection['reason']}: {rejection['message']}" if rejection else describe_placements(placements)


def describe_placements(placements: Iterable[Mapping[str, Any]]) -> str:
    from alignup.align.decision import Placement  # noqa: PLC0415 - slow to import
    from alignup.align.explain import sentences  # noqa: PLC0415
    from alignup.align.hint import Hint  # noqa: PLC0415

    any_hint = Hint(None, preferred=True)
    allocations = [Placement.of_text(document["container"], any_hint, document["given"]) for document in placements]
    return sentences.describe_allocations(allocations)

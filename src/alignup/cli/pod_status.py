"""Pods of the agent for the terminal: selecting one by name, and its columns as ``kubectl get pods`` prints them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignup.cli.agent_client import AgentError, Document
from alignup.cli.app import InputError

_INITIALIZING = "PodInitializing"  #: reason of a container whose turn to start has not come


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


def is_terminating(pod: Document | None) -> bool:
    return bool(pod and pod.get("run") and pod["run"]["ending"])


def status(pod: Document) -> str:
    """The STATUS column of ``kubectl get pods``; without a runtime, the agent's own status."""
    run = pod.get("run")
    if run is None or pod["status"] == "waiting":
        return f"{pod['status']} ({pod['position']})" if pod["position"] else str(pod["status"])
    if run["ending"] and run["phase"] not in {"Succeeded", "Failed"}:
        return "Terminating"
    inits, apps = _split_containers(run["containers"])
    if any(_has_started(one) for one in apps):
        return _app_status(run, apps)
    return _init_status(inits) or _app_status(run, apps)


def ready(pod: Document) -> str:
    """Ready containers of all that keep running: ``1/2``."""
    if pod.get("run") is None:
        return "-"
    lasting = [one for one in pod["run"]["containers"] if one["kind"] != "init"]
    return f"{sum(one['ready'] for one in lasting)}/{len(lasting)}"


def restarts(pod: Document) -> str:
    """Restarts of the init containers while they run; afterwards of sidecars and app containers."""
    if pod.get("run") is None:
        return "-"
    inits, apps = _split_containers(pod["run"]["containers"])
    if _init_status(inits) and not any(map(_has_started, apps)):
        counted = inits
    else:
        counted = [*apps, *(one for one in inits if one["kind"] == "sidecar")]
    return str(sum(one["restarts"] for one in counted))


def detail(pod: Document) -> str:
    """The resources of a pod, or why it is waiting, or how it ended; and why containers are not running."""
    run = pod.get("run")
    if run is None or pod["status"] == "waiting":
        return describe_outcome(pod["rejection"], pod["placements"])
    waiting = [one for one in run["containers"] if one["state"] == "waiting" and one["message"]]
    parts = [": ".join(filter(None, (one["name"], one["reason"], one["message"]))) for one in waiting]
    if pod["status"] == "finished":
        parts.insert(0, ": ".join(filter(None, (run["reason"], run["message"]))))
    else:
        parts.insert(0, describe_placements(pod["placements"]))
    return "; ".join(filter(None, parts)) or "-"


def ips(pod: Document) -> str:
    return ",".join(pod["run"]["ips"]) or "-" if pod.get("run") else "-"


def cpus(pod: Document) -> str:
    """The CPUs of each running container: ``app:2-3 side:any``."""
    found = pod["run"]["containers"] if pod.get("run") else ()
    return " ".join(f"{one['name']}:{one['cpus'] or 'any'}" for one in found if one["state"] == "running") or "-"


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


def _split_containers(containers: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Init containers and sidecars, and app containers."""
    inits = [one for one in containers if one["kind"] != "app"]
    return inits, [one for one in containers if one["kind"] == "app"]


def _has_started(container: Document) -> bool:
    return bool(container["state"] != "waiting" or container["restarts"])


def _init_status(inits: Sequence[Document]) -> str:
    """``Init:1/2`` or ``Init:Error``; empty when all are done."""
    for number, one in enumerate(inits):
        if one["state"] == "running" if one["kind"] == "sidecar" else one["exitCode"] == 0 and one["state"] == "ended":
            continue
        if one["state"] == "ended" or one["reason"] not in {"", _INITIALIZING}:
            return f"Init:{_reason(one)}"
        return f"Init:{number}/{len(inits)}"
    return ""


def _app_status(run: Document, apps: Sequence[Document]) -> str:
    """The reason of the first container that has one, or else the pod's reason or phase."""
    reasons = [reason for one in apps if one["state"] != "running" and (reason := _reason(one))]
    found = str(reasons[0] if reasons else run["reason"] or run["phase"])
    if found == "Completed" and any(one["state"] == "running" for one in apps):
        return "NotReady"
    return found


def _reason(container: Document) -> str:
    if container["reason"] or container["state"] == "waiting":
        return str(container["reason"])
    return f"ExitCode:{container['exitCode']}"

"""Pods as an agent tells of them: which one is meant, and how it is in a word, as ``kubectl get pods`` would say it."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from alignup.cli.app import InputError
from alignup.cli.client import AgentError

Document = dict[str, Any]

_OVER = ("Succeeded", "Failed")  #: phases that no pod leaves
_NEXT = "PodInitializing"  #: why a container waits for which it simply is not time yet


def find_pod(said: str, known: Iterable[Document]) -> Document:
    """The one pod that somebody calls *said*: by its uid, its name, or both names with a slash between them."""
    found = [one for one in known if said in (one["uid"], one["name"], full_name(one))]
    if not found:
        raise AgentError(f"there is no pod {said}", advice="'alignup ps' shows the pods there are.")
    exact = [one for one in found if one["uid"] == said] or found
    if len(exact) > 1:
        uids = ", ".join(one["uid"] for one in exact)
        raise InputError(f"{said} could be any of {len(exact)} pods", advice=f"Say which by its uid: {uids}.")
    return exact[0]


def full_name(pod: Document) -> str:
    """Namespace and name."""
    return f"{pod['namespace']}/{pod['name']}"


def pod_path(pod: Document) -> str:
    """Where the agent tells of one pod."""
    return f"/v1/pods/{quote(pod['uid'], safe='')}"


def is_terminating(pod: Document | None) -> bool:
    """Whether a pod was told to stop, and something of it still runs."""
    return bool(pod and pod.get("run") and pod["run"]["ending"])


def status(pod: Document) -> str:
    """How a pod is, in the word that tells most."""
    run = pod.get("run")
    if run is None or pod["status"] == "waiting":
        return f"{pod['status']} ({pod['position']})" if pod["position"] else str(pod["status"])
    if run["ending"] and run["phase"] not in _OVER:
        return "Terminating"
    inits, apps = _parted(run["containers"])
    if any(_has_begun(one) for one in apps):
        return _of_apps(run, apps)
    return _of_inits(inits) or _of_apps(run, apps)


def ready(pod: Document) -> str:
    """How many of the containers that stay are ready, and how many there are: ``1/2``."""
    if pod.get("run") is None:
        return "-"
    staying = [one for one in pod["run"]["containers"] if one["kind"] != "init"]
    return f"{sum(one['ready'] for one in staying)}/{len(staying)}"


def restarts(pod: Document) -> str:
    """How often containers were started again: all that stay, or while they are at work those that only prepare."""
    if pod.get("run") is None:
        return "-"
    inits, apps = _parted(pod["run"]["containers"])
    counted = inits if _of_inits(inits) and not any(map(_has_begun, apps)) else [*apps, *map(_if_stays, inits)]
    return str(sum(one["restarts"] for one in counted))


def detail(pod: Document) -> str:
    """What a pod has, or why it waits, or how it ended; and why containers of it do not run."""
    from alignup.cli import tables  # noqa: PLC0415 - it loads what only tables need

    run = pod.get("run")
    if run is None or pod["status"] == "waiting":
        return tables.describe_outcome(pod["rejection"], pod["placements"])
    waits = [one for one in run["containers"] if one["state"] == "waiting" and one["message"]]
    told = [": ".join(filter(None, (one["name"], one["reason"], one["message"]))) for one in waits]
    if pod["status"] == "finished":
        told.insert(0, ": ".join(filter(None, (run["reason"], run["message"]))))
    else:
        told.insert(0, tables.describe_placements(pod["placements"]))
    return "; ".join(filter(None, told)) or "-"


def ips(pod: Document) -> str:
    """The addresses of a pod that has some of its own."""
    return ",".join(pod["run"]["ips"]) or "-" if pod.get("run") else "-"


def cpus(pod: Document) -> str:
    """The CPUs that the containers of a pod run on, each with its name."""
    found = pod["run"]["containers"] if pod.get("run") else ()
    return " ".join(f"{one['name']}:{one['cpus'] or 'any'}" for one in found if one["state"] == "running") or "-"


def _parted(containers: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Those that come first, sidecars among them, and the others."""
    inits = [one for one in containers if one["kind"] != "app"]
    return inits, [one for one in containers if one["kind"] == "app"]


def _has_begun(container: Document) -> bool:
    return bool(container["state"] != "waiting" or container["restarts"])


def _if_stays(container: Document) -> Document:
    return container if container["kind"] == "sidecar" else {"restarts": 0}


def _of_inits(inits: Sequence[Document]) -> str:
    """How far they are that come first; empty when all are done."""
    for place, one in enumerate(inits):
        if _is_done(one):
            continue
        if one["state"] == "ended" or one["reason"] not in {"", _NEXT}:
            return f"Init:{_why(one)}"
        return f"Init:{place}/{len(inits)}"
    return ""


def _is_done(container: Document) -> bool:
    if container["kind"] == "sidecar":
        return bool(container["state"] == "running")
    return bool(container["state"] == "ended" and container["exitCode"] == 0)


def _of_apps(run: Document, apps: Sequence[Document]) -> str:
    """The reason of the first container that has one, else that of the pod, else its phase."""
    told = [word for one in apps if one["state"] != "running" and (word := _why(one))]
    found = str(told[0] if told else run["reason"] or run["phase"])
    if found == "Completed" and any(one["state"] == "running" for one in apps):
        return "NotReady"
    return found


def _why(container: Document) -> str:
    """Why a container waits or has ended; empty when it waits for no reason that was told."""
    if container["reason"] or container["state"] == "waiting":
        return str(container["reason"])
    return f"ExitCode:{container['exitCode']}"

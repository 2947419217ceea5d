"""Compare each step of a replay by an agent in a guest with the recorded kubelet run.

``tests/recorded`` already compares the library with every recording. From where the kubelet has a defect that the
library does not follow, the agent is compared with the library instead.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.bits import NodeSet
from e2e.guest import Node, Shape
from e2e.guest_node import FILES
from tests.recorded.replay import FAULT, HOST, PREFIX, Course, LostError, Run, SkippedError
from tests.recorded.snapshot import Comparison

Document = Mapping[str, Any]

#: One summary line per replay.
LINES = pytest.StashKey[list[str]]()

ONE_FILE = "the agent has one checkpoint instead of a state file per manager, and it was not removed"
WAITS = "the pod waits where the kubelet rejects it"
CRITICAL = "the kubelet treats static pods as critical, and its message says so"
LIBRARY = f"{FAULT}; the agent agrees with the library"

#: What precedes the kubelet's words in an error of ours: the file with the line, and the field or option.
LOCATION = re.compile(r"alignup: (\S+\.json(:\d+)?: )?((--)?[\w.\[\]]+: )?")
#: Tolerated difference in memory between a guest and the recorded one, in bytes.
SLACK = 1 << 20
#: The inputs of a step.
INPUTS = (
    "op",
    "manifest",
    "name",
    "signal",
    "plugin",
    "remove_state",
    "resource",
    "id",
    "health",
    "config",
    "keep_state",
)

_PREEMPTION = "preemption: error finding a set of pods to preempt"


def shape(recording: Document) -> Shape:
    """The guest of a recording."""
    huge = {int(node): pages for node, pages in recording["hugepages_set"].items()}
    if recording["guest_kind"] == "4-node":
        nodes = tuple(Node(512, f"{2 * node}-{2 * node + 1}") for node in range(4))
        far = {(a, b): 12 if a // 2 == b // 2 else 32 for a in range(4) for b in range(4) if a != b}
        return Shape(2, 2, 2, nodes, distances=far, hugepages=huge)
    nodes = tuple(Node(192, f"{4 * node}-{4 * node + 3}") for node in range(8))
    far = {(a, b): 10 + 2 * abs(a - b) for a in range(8) for b in range(8) if a != b}
    return Shape(8, 2, 2, nodes, distances=far, hugepages=huge)


def scenario(recording: Document) -> dict[str, Any]:
    """The inputs of a recording, without its results."""
    return {
        **{name: recording[name] for name in ("kubelet_config", "plugins")},
        **({"initial": True} if "initial" in recording else {}),
        "steps": [{name: step[name] for name in INPUTS if name in step} for step in recording["steps"]],
    }


def compare(recording: Document, ours: Document, run: Run) -> None:
    """Compare every step of *ours* with *recording*; count results in *run*."""
    library = _LibraryReplay(recording)
    advising = frozenset(plugin["resource"] for plugin in recording["plugins"] if plugin["preferred"])
    steps = [(-1, {"op": "start", **recording["initial"]}, ours["initial"])] if "initial" in recording else []
    steps += [(number, *pair) for number, pair in enumerate(zip(recording["steps"], ours["steps"], strict=False))]
    for number, step, shown in steps:
        label, faults = _step(library, number, step, shown, advising=advising)
        if faults:
            run.failures.append(f"step {number} ({step['op']} {step.get('pod') or step.get('name') or ''}): {faults}")
        elif label:
            run.apart[label] += 1
        else:
            run.compared += 1
    if len(ours["steps"]) < len(recording["steps"]):
        run.failures.append(f"only {len(ours['steps'])} of {len(recording['steps'])} steps were replayed")


def _step(
    library: "_LibraryReplay", number: int, step: Document, shown: Document, *, advising: Collection[str]
) -> tuple[str, list[str]]:
    """Why a step cannot be compared with the recording, and its differences."""
    if "error" in shown:
        return "", [shown["error"], shown.get("log", "")]
    if step["op"] == "bad_config":
        return "", configuration(step, shown)
    label = library.follow(number, step)
    known, faults = verdict(step, shown)
    faults += consistent(shown)
    if label == LIBRARY:
        faults += library.compare(shown)
    elif not label:
        faults += snapshot(step, shown, advising=advising)
    return label or known, faults


class _LibraryReplay:
    """The same replay by the library, which knows from where on the recording does not apply."""

    def __init__(self, recording: Document) -> None:
        self._strict, self._own = Course(recording), Course(recording, compare=False)
        self._lost = ""

    def follow(self, number: int, step: Document) -> str:
        """Replay a step; return why the recording does not apply, or an empty string."""
        if step.get("remove_state"):
            self._lost = ONE_FILE
        if not self._lost:
            self._lost = _taken(self._strict, number, step)
        if self._lost != ONE_FILE:
            _taken(self._own, number, step)
        return self._lost

    def compare(self, shown: Document) -> list[str]:
        """Differences between the agent and the library."""
        host = self._own.host
        held = {
            uid: {name: bits.show(cpus) for name, cpus in own.items()} for uid, own in host.ledger.cpus.held.items()
        }
        groups = [{**one, "pod": f"{one['pod']}-{HOST}"} for one in shown["cgroups"]]
        confined = Comparison(host, {"cgroups": groups}, self._own.places).confined
        return [*differ("CPUs", _placed(shown), held), *_asserted(confined)]


def _taken(course: Course, number: int, step: Document) -> str:
    """Replay a step; return why the recording does not apply from here on, or an empty string."""
    try:
        course.follow(number, step)
    except SkippedError:
        return ""
    except (LostError, AssertionError):
        return LIBRARY
    return ""


def _asserted(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except AssertionError as error:
        return [str(error)]
    return []


def verdict(step: Document, shown: Document) -> tuple[str, list[str]]:
    """Compare the status of a pod: why a difference is expected, and other differences."""
    if step["op"] == "restart":
        return "", differ("containers stopped and started", (shown["stopped"], shown["started"]), (0, 0))
    if step["op"] != "pod":
        return "", []
    theirs = (step["verdict"], step["reason"], (step["message"] or "").removeprefix(PREFIX) or None, step["qosClass"])
    ours = (shown["verdict"], shown["reason"], shown["message"], shown["qosClass"])
    if theirs[0] == "rejected" and ours[0] == "waiting":
        return WAITS, []
    if _PREEMPTION in (theirs[2] or "") and ours[0] == "rejected" and ours[1].startswith("OutOf"):
        return CRITICAL, []
    return "", differ("verdict", ours, theirs)


def configuration(step: Document, shown: Document) -> list[str]:
    """Compare the errors of an agent and a kubelet about a configuration."""
    if step["verdict"] != shown["verdict"]:
        return differ(step["name"], (shown["verdict"], shown["log"]), (step["verdict"], step["log"][-3:]))
    if step["verdict"] == "started":
        return []
    error = LOCATION.sub("", shown["log"].partition("\n")[0])
    logged = [line.replace('\\"', '"') for line in step["log"]]
    if error and any(error in line for line in logged):
        return [] if shown["exit_code"] else [f"{step['name']}: exit status {shown['exit_code']}"]
    return differ(step["name"], error, logged)


def snapshot(step: Document, shown: Document, *, advising: Collection[str]) -> list[str]:
    """Compare all observations of a node with those of the kubelet's.

    Plugins of *advising* resources have preferences; of other resources the kubelet allocates arbitrary devices.
    """
    uids = {one["uid"] for one in shown["pods"]}
    hints = _hints(shown)
    return [
        *differ("pods", _pods(shown["pods"]), _pods(step["pods"])),
        *differ("listed", _listed(shown, hints, advising), _listed(step, hints, advising)),
        *_allocatable(shown["podresources_allocatable"], step["podresources_allocatable"]),
        *differ("CPUs", _placed(shown), _entries(step, uids)),
        *differ("groups", _held(shown), _held(step)),
    ]


def consistent(shown: Document) -> list[str]:
    """Check that containers are on their allocated CPUs."""
    if not shown.get("cgroups"):
        return []
    uids = {one["name"]: one["uid"] for one in shown["pods"]}
    placed = _placed(shown)
    faults = []
    for group in shown["cgroups"]:
        given = placed.get(uids[group["pod"]], {}).get(group["container"])
        if given is not None:
            faults += differ(f"CPUs of {group['pod']} {group['container']}", group["cpuset.cpus"], given)
    return faults


def files(recording: Document, texts: Mapping[str, str]) -> list[str]:
    """Compare the exported kubelet files with the kubelet's, for pods that still run."""
    last = recording["steps"][-1]
    there = {one["uid"] for one in last["pods"] if one["status"]["phase"] == "Running"}
    faults = []
    for name in ("cpu_manager_state", "memory_manager_state"):
        ours, theirs = (_written(text) for text in (texts[name], last[name] or "{}"))
        faults += differ(name, ours, {uid: own for uid, own in theirs.items() if uid in there})
    return faults


def _written(text: str) -> dict[str, Any]:
    """The entries of a kubelet file; the order of memory blocks does not matter."""
    entries = json.loads(text).get("entries") or {}
    return {
        uid: {name: own if isinstance(own, str) else sorted(own, key=json.dumps) for name, own in pod.items()}
        for uid, pod in entries.items()
    }


def differ(what: str, ours: object, theirs: object) -> list[str]:
    """A list of differences."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        return [f"{what} {name}: {ours.get(name)}, recorded {theirs.get(name)}" for name in names]
    return [] if ours == theirs else [f"{what} {ours}, recorded {theirs}"]


def _name(name: str) -> str:
    return name.removesuffix(f"-{HOST}")


def _pods(pods: Iterable[Document]) -> dict[str, tuple[str, str]]:
    return {_name(one["name"]): (one["uid"], one["status"]["phase"]) for one in pods}


#: Pod and container → the NUMA nodes of its hint; ``None``: any.
_Hints = Mapping[tuple[str, str], NodeSet | None]


def _hints(shown: Document) -> _Hints:
    names = {one["uid"]: one["name"] for one in shown["pods"]}
    return {
        (names[uid], one["container"]): None if one["hint"]["nodes"] is None else bits.parse(one["hint"]["nodes"])
        for uid, placements in shown["placements"].items()
        for one in placements
    }


def _listed(shown: Document, hints: _Hints, advising: Collection[str]) -> dict[str, Any]:
    """The resources of each container; devices without preferences are compared by NUMA node only."""
    found: dict[str, Any] = {}
    for pod in shown["podresources_list"]["pod_resources"]:
        name = _name(pod["name"])
        for one in pod["containers"]:
            own = _holding(one)
            near = hints.get((name, one["name"]))
            devices: Counter[tuple[str, int, str]] = Counter()
            for (resource, count, nodes), times in own["devices"].items():
                where = str(nodes) if resource in advising else _within(nodes, near)
                devices[resource, count, where] += times
            found[f"{name} {one['name']}"] = {**own, "devices": devices}
    return found


def _within(nodes: str | None, near: NodeSet | None) -> str:
    """Whether a device on *nodes* is within the hint *near*."""
    if near is None:
        return "anywhere"
    if nodes is None:
        return "nowhere"
    return "elsewhere" if bits.parse(nodes) & ~near else f"within {bits.show(near)}"


def _holding(entry: Document) -> dict[str, Any]:
    """The resources in a PodResources entry, with devices counted by NUMA node."""
    return {
        "cpus": sorted(map(int, entry["cpu_ids"])),
        "memory": sorted((one["memory_type"], one["size"], _nodes(one)) for one in entry["memory"]),
        "devices": Counter((one["resource_name"], len(one["device_ids"]), _nodes(one)) for one in entry["devices"]),
    }


def _nodes(entry: Document) -> str | None:
    """``None``: without topology."""
    topology = entry.get("topology")
    return None if topology is None else bits.show(bits.of(int(node["ID"]) for node in topology["nodes"]))


def _allocatable(ours: Document, theirs: Document) -> list[str]:
    """Compare the allocatable resources."""
    mine, recorded = _holding(ours), _holding(theirs)
    faults = [
        fault for what in ("cpus", "devices") for fault in differ(f"allocatable {what}", mine[what], recorded[what])
    ]
    memory = [{(type_, nodes): int(size) for type_, size, nodes in one["memory"]} for one in (mine, recorded)]
    near = memory[0].keys() == memory[1].keys() and all(
        abs(memory[0][key] - memory[1][key]) <= SLACK for key in memory[0]
    )
    return faults if near else [*faults, *differ("allocatable memory", *memory)]


def _placed(shown: Document) -> dict[str, dict[str, str]]:
    """Pod → container → its exclusive CPUs."""
    found: dict[str, dict[str, str]] = {}
    for uid, placements in shown["placements"].items():
        own = {
            one["container"]: one["given"]["cpu"]["cpu"] for one in placements if one["given"].get("cpu", {}).get("cpu")
        }
        found |= {uid: own} if own else {}
    return found


def _entries(step: Document, uids: set[str]) -> dict[str, dict[str, str]]:
    """The same from the kubelet's file, for pods that exist."""
    entries = json.loads(step["cpu_manager_state"]).get("entries") or {}
    return {uid: own for uid, own in entries.items() if uid in uids}


def _held(shown: Document) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (_name(one["pod"]), one["container"]): {name: one.get(name, "") for name in FILES} for one in shown["cgroups"]
    }


def recordings(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.json.gz"))

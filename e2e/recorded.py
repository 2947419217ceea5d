"""What an agent in a guest showed after each step of a recorded run, held against what the kubelet showed.

An agent is its heart and more, and the heart was compared with every recording already (``tests/recorded``). Where the
kubelet goes wrong and the heart does not go along, the heart is what the agent is held against.
"""

import json
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

#: How recorded runs went that an agent took again, a line each.
LINES = pytest.StashKey[list[str]]()

ONE_FILE = "an agent has one file, not one a manager, and it was not removed"
WAITS = "the pod waits where the kubelet refuses it"
CRITICAL = "the kubelet takes a static pod for a critical one, and says so when it refuses it"
HEART = f"{FAULT}; the agent is as the heart"

#: Memory that a guest may have more or less than the one that was recorded, in bytes: firmware takes its own.
SLACK = 1 << 20
#: What is said of a step, besides what came of it.
TOLD = (
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
    """What is to be done, without what came of it."""
    return {
        **{name: recording[name] for name in ("kubelet_config", "plugins")},
        **({"initial": True} if "initial" in recording else {}),
        "steps": [{name: step[name] for name in TOLD if name in step} for step in recording["steps"]],
    }


def compare(recording: Document, ours: Document, run: Run) -> None:
    """Hold every step of *ours* against *recording*, counting into *run*."""
    heart = _Heart(recording)
    advising = frozenset(plugin["resource"] for plugin in recording["plugins"] if plugin["preferred"])
    steps = [(-1, {"op": "start", **recording["initial"]}, ours["initial"])] if "initial" in recording else []
    steps += [(number, *pair) for number, pair in enumerate(zip(recording["steps"], ours["steps"], strict=False))]
    for number, step, shown in steps:
        label, faults = _step(heart, number, step, shown, advising=advising)
        if faults:
            run.failures.append(f"step {number} ({step['op']} {step.get('pod') or step.get('name') or ''}): {faults}")
        elif label:
            run.apart[label] += 1
        else:
            run.compared += 1
    if len(ours["steps"]) < len(recording["steps"]):
        run.failures.append(f"only {len(ours['steps'])} of {len(recording['steps'])} steps were taken")


def _step(
    heart: "_Heart", number: int, step: Document, shown: Document, *, advising: Collection[str]
) -> tuple[str, list[str]]:
    """What could not be compared with the recording in a step, and what is wrong."""
    if "error" in shown:
        return "", [shown["error"], shown.get("said", "")]
    if step["op"] == "bad_config":
        return "", configuration(step, shown)
    label = heart.follow(number, step)
    known, faults = verdict(step, shown)
    faults += consistent(shown)
    if label == HEART:
        faults += heart.against(shown)
    elif not label:
        faults += snapshot(step, shown, advising=advising)
    return label or known, faults


class _Heart:
    """A host that goes the same way, and knows from where on the recording is no measure any more."""

    def __init__(self, recording: Document) -> None:
        self._strict, self._own = Course(recording), Course(recording, compare=False)
        self._lost = ""

    def follow(self, number: int, step: Document) -> str:
        """Take a step; why the recording is no measure for it, if it is not."""
        if step.get("remove_state"):
            self._lost = ONE_FILE
        if not self._lost:
            self._lost = _taken(self._strict, number, step)
        if self._lost != ONE_FILE:
            _taken(self._own, number, step)
        return self._lost

    def against(self, shown: Document) -> list[str]:
        """What the agent shows that the host does not have."""
        host = self._own.host
        held = {
            uid: {name: bits.show(cpus) for name, cpus in own.items()}
            for uid, own in host.ledger.books["cpu"].held.items()
        }
        groups = [{**one, "pod": f"{one['pod']}-{HOST}"} for one in shown["cgroups"]]
        confined = Comparison(host, {"cgroups": groups}, self._own.places).confined
        return [*differ("CPUs", _placed(shown), held), *_asserted(confined)]


def _taken(course: Course, number: int, step: Document) -> str:
    """Take a step; why the recording is no measure from here on, if it is not."""
    try:
        course.follow(number, step)
    except SkippedError:
        return ""
    except (LostError, AssertionError):
        return HEART
    return ""


def _asserted(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except AssertionError as error:
        return [str(error)]
    return []


def verdict(step: Document, shown: Document) -> tuple[str, list[str]]:
    """What became of a pod: why that is no difference though it looks like one, and the differences."""
    if step["op"] == "restart":
        return "", differ("containers ended and begun", (shown["ended"], shown["begun"]), (0, 0))
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
    """What an agent says to a configuration, beside what the kubelet said."""
    if step["verdict"] != shown["verdict"]:
        return differ(step["name"], (shown["verdict"], shown["log"]), (step["verdict"], step["log"][-3:]))
    if step["verdict"] == "started":
        return []
    said = shown["log"].partition("\n")[0].removeprefix("alignup: ")
    logged = [line.replace('\\"', '"') for line in step["log"]]
    # What is wrong may be named before it.
    if any(words and words in line for words in (said, said.partition(": ")[2]) for line in logged):
        return [] if shown["exit_code"] else [f"{step['name']}: exit status {shown['exit_code']}"]
    return differ(step["name"], said, logged)


def snapshot(step: Document, shown: Document, *, advising: Collection[str]) -> list[str]:
    """Everything that can be seen of a node, beside what could be seen of the kubelet's.

    Plugins of *advising* resources say which devices to take; of others the kubelet takes any.
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
    """Whether containers are held to the CPUs that they were given."""
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
    """What an agent left for a kubelet at the end, beside what the kubelet had, of pods that are still there."""
    last = recording["steps"][-1]
    there = {one["uid"] for one in last["pods"] if one["status"]["phase"] == "Running"}
    faults = []
    for name in ("cpu_manager_state", "memory_manager_state"):
        ours, theirs = (_written(text) for text in (texts[name], last[name] or "{}"))
        faults += differ(name, ours, {uid: own for uid, own in theirs.items() if uid in there})
    return faults


def _written(text: str) -> dict[str, Any]:
    """Who holds what, by one of the kubelet's files; blocks of memory have no order."""
    entries = json.loads(text).get("entries") or {}
    return {
        uid: {name: own if isinstance(own, str) else sorted(own, key=json.dumps) for name, own in pod.items()}
        for uid, pod in entries.items()
    }


def differ(what: str, ours: object, theirs: object) -> list[str]:
    """Nothing, or what is different."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours != theirs:
        names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        return [f"{what} {name}: {ours.get(name)}, recorded {theirs.get(name)}" for name in names]
    return [] if ours == theirs else [f"{what} {ours}, recorded {theirs}"]


def _name(name: str) -> str:
    return name.removesuffix(f"-{HOST}")


def _pods(pods: Iterable[Document]) -> dict[str, tuple[str, str]]:
    return {_name(one["name"]): (one["uid"], one["status"]["phase"]) for one in pods}


#: Pod and container → the nodes all of it is to come from; ``None``: any.
_Hints = Mapping[tuple[str, str], NodeSet | None]


def _hints(shown: Document) -> _Hints:
    names = {one["uid"]: one["name"] for one in shown["pods"]}
    return {
        (names[uid], one["container"]): None if one["hint"]["nodes"] is None else bits.parse(one["hint"]["nodes"])
        for uid, placements in shown["placements"].items()
        for one in placements
    }


def _listed(shown: Document, hints: _Hints, advising: Collection[str]) -> dict[str, Any]:
    """Who has what; of devices that nobody advised on, only whether they are from where they should be is the same."""
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
    """Whether a device at *nodes* is *near*, as far as that can be said."""
    if near is None:
        return "anywhere"
    if nodes is None:
        return "nowhere"
    return "elsewhere" if bits.parse(nodes) & ~near else f"within {bits.show(near)}"


def _holding(told: Document) -> dict[str, Any]:
    """What a container has, or could be had; devices as counts a node."""
    return {
        "cpus": sorted(map(int, told["cpu_ids"])),
        "memory": sorted((one["memory_type"], one["size"], _nodes(one)) for one in told["memory"]),
        "devices": Counter((one["resource_name"], len(one["device_ids"]), _nodes(one)) for one in told["devices"]),
    }


def _nodes(told: Document) -> str | None:
    """``None``: nothing is said of them."""
    topology = told.get("topology")
    return None if topology is None else bits.show(bits.of(int(node["ID"]) for node in topology["nodes"]))


def _allocatable(ours: Document, theirs: Document) -> list[str]:
    """What could be had on an idle node."""
    mine, told = _holding(ours), _holding(theirs)
    faults = [fault for what in ("cpus", "devices") for fault in differ(f"allocatable {what}", mine[what], told[what])]
    memory = [{(type_, nodes): int(size) for type_, size, nodes in one["memory"]} for one in (mine, told)]
    near = memory[0].keys() == memory[1].keys() and all(
        abs(memory[0][key] - memory[1][key]) <= SLACK for key in memory[0]
    )
    return faults if near else [*faults, *differ("allocatable memory", *memory)]


def _placed(shown: Document) -> dict[str, dict[str, str]]:
    """Pod → container → the CPUs that are its own."""
    found: dict[str, dict[str, str]] = {}
    for uid, placements in shown["placements"].items():
        own = {
            one["container"]: one["given"]["cpu"]["cpu"] for one in placements if one["given"].get("cpu", {}).get("cpu")
        }
        found |= {uid: own} if own else {}
    return found


def _entries(step: Document, uids: set[str]) -> dict[str, dict[str, str]]:
    """The same of the kubelet's file, for pods that are there."""
    entries = json.loads(step["cpu_manager_state"]).get("entries") or {}
    return {uid: own for uid, own in entries.items() if uid in uids}


def _held(shown: Document) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (_name(one["pod"]), one["container"]): {name: one.get(name, "") for name in FILES} for one in shown["cgroups"]
    }


def recordings(folder: Path) -> Sequence[Path]:
    """The recordings of a folder."""
    return sorted(folder.glob("*.json.gz"))

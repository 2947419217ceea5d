"""Traces of the kubelet's CPU manager in the format of the vectors, drawn at random and made by a plain model of it.

The model keeps sets in dictionaries and has the kubelet's faults: it gives CPUs of another pod that a pod may reuse,
and places a pod with pod-level resources again. Only the selection of CPUs is ours, for the model
checks ours: ``alignup.testing.simulated_kubelet`` decides with the code under test.
"""

from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.selection import PackedSelection
from alignup.align.errors import ProviderError

Json = dict[str, Any]
Cpus = frozenset[int]


class CpuManagerModel:
    def __init__(self, nodes: dict[int, Cpus], selection: PackedSelection, pods: dict[str, Json]) -> None:
        self.nodes, self.selection, self.pods = nodes, selection, pods
        self.shared: Cpus = frozenset().union(*nodes.values())
        self.held: dict[str, dict[str, Cpus]] = {}
        self.pod_held: dict[str, Cpus] = {}
        self.reusable: dict[str, Cpus] = {}

    def play(self, event: Json) -> Json:
        """Return the event with its result and the state after it."""
        result: Json = {}
        try:
            hints = getattr(self, event["op"])(event)
        except ProviderError as error:
            result["error"] = {
                "raw": str(error),
                "admission_reason": error.reason,
                "admission_message": error.message,
            }
        else:
            if hints is not None:
                result["hints"] = hints
        return {
            **event,
            **result,
            "default": show(self.shared),
            "assignments": {uid: shown(held) for uid, held in self.held.items()},
            "pod_assignments": shown(self.pod_held),
            "reusable": shown(self.reusable),
        }

    def start(self, event: Json) -> None:
        pass

    def hints(self, event: Json) -> list | None:
        pod, owned = self.pods[event["pod"]], self.held.get(event["pod"], {}).get(event["container"])
        count = self.count(pod, event["container"])
        if not count:
            return None
        if owned is not None:
            return self.hint_list(owned, frozenset(), count) if len(owned) == count else []
        return self.hint_list(self.shared, self.reusable.get(pod["uid"], frozenset()), count)

    def pod_hints(self, event: Json) -> list | None:
        pod = self.pods[event["pod"]]
        count = self.count(pod)
        if not count:
            return None
        if pod.get("pod_resources") and self.problem(pod):
            return []
        held = self.held.get(pod["uid"], {})
        if any(len(cpus) != self.count(pod, name) for name, cpus in held.items()):
            return []
        owned = frozenset[int]().union(*held.values())
        if len(owned) == count:
            return self.hint_list(owned, frozenset(), count)
        return self.hint_list(self.shared, self.reusable.get(pod["uid"], frozenset()) | owned, count)

    def allocate(self, event: Json) -> None:
        pod, name = self.pods[event["pod"]], event["container"]
        uid, count = pod["uid"], self.count(pod, name)
        if not count:
            return
        cpus = self.held.get(uid, {}).get(name)
        reusable = self.reusable.get(uid, frozenset())
        if cpus is None:
            cpus = self.choose(self.shared | reusable, count, event)
            self.shared -= cpus
            self.held.setdefault(uid, {})[name] = cpus
        self.reusable = {uid: reusable | cpus if is_ordinary_init(pod, name) else reusable - cpus}

    def allocate_pod(self, event: Json) -> None:
        pod = self.pods[event["pod"]]
        count = self.count(pod)
        if not count:
            return
        if problem := self.problem(pod):
            raise ProviderError(problem, reason="EmptyPodSharedPoolError")
        left = self.choose(self.shared, count, event)
        self.shared -= left
        self.pod_held[pod["uid"]] = left
        parts: dict[str, Cpus | None] = {}
        for name in names(pod):
            part = self.take(left, number) if (number := self.count(pod, name)) else None
            if is_ordinary_init(pod, name):
                part = left if part is None else part
            elif part is not None:
                left -= part
            parts[name] = part
        self.held[pod["uid"]] = {name: left if part is None else part for name, part in parts.items()}

    def remove(self, event: Json) -> None:
        uid, held = event["pod"], self.held.get(event["pod"], {})
        if event["container"] not in held:
            return
        cpus = held.pop(event["container"])
        if uid not in self.pod_held:
            self.shared |= cpus - frozenset[int]().union(*held.values())
        elif not held:
            self.shared |= self.pod_held.pop(uid)
        if not held:
            del self.held[uid]

    def count(self, pod: Json, container: str | None = None) -> int:
        """The exclusive CPUs of a container or a pod; here all amounts are whole numbers, or missing."""
        if container is not None:
            return next(
                int(document["requests"].get("cpu", 0)) for document in all_of(pod) if document["name"] == container
            )
        if pod.get("pod_resources"):
            return int(pod["pod_resources"]["requests"]["cpu"])
        sidecars = most = 0
        for document in pod["init"]:
            request = int(document["requests"]["cpu"])
            most = max(most, sidecars + request)
            sidecars += request if document["restartable"] else 0
        return max(most, sidecars + sum(int(document["requests"]["cpu"]) for document in pod["containers"]))

    def problem(self, pod: Json) -> str:
        exclusive, shares = 0, False
        for name in names(pod):
            count = self.count(pod, name)
            if not is_ordinary_init(pod, name):
                exclusive, shares = exclusive + count, shares or not count
            elif not count and exclusive >= self.count(pod):
                return "pod rejected, pod has shared init containers but no cpus available for them"
        if shares and exclusive >= self.count(pod):
            return (
                "pod rejected, sum of exclusive container cpu requests equals pod budget, "
                "leaving no cpus for shared containers"
            )
        return ""

    def choose(self, pool: Cpus, count: int, event: Json) -> Cpus:
        near = frozenset(cpu for node in event.get("affinity", ()) for cpu in self.nodes[node] if cpu in pool)
        first = self.take(near, min(count, len(near)))
        return first | self.take(pool - first, count - len(first))

    def take(self, pool: Cpus, count: int) -> Cpus:
        return frozenset(bits.members(self.selection.take(bits.of(pool), count)))

    def hint_list(self, available: Cpus, reusable: Cpus, count: int) -> list:
        hints, smallest = [], len(self.nodes)
        for width in range(1, len(self.nodes) + 1):
            for mask in combinations(sorted(self.nodes), width):
                inside = frozenset[int]().union(*(self.nodes[node] for node in mask))
                if len(inside) >= count:
                    smallest = min(smallest, width)
                if reusable <= inside and len(reusable) + len(available & inside) >= count:
                    hints.append(list(mask))
        return [[mask, len(mask) == smallest] for mask in hints]


def show(cpus: Cpus) -> str:
    return bits.show(bits.of(cpus))


def shown(sets: dict[str, Cpus]) -> dict[str, str]:
    return {name: show(cpus) for name, cpus in sets.items()}


def all_of(pod: Json) -> list[Json]:
    return [*pod["init"], *pod["containers"]]


def names(pod: Json) -> list[str]:
    return [container["name"] for container in all_of(pod)]


def is_ordinary_init(pod: Json, container: str) -> bool:
    return any(init["name"] == container and not init["restartable"] for init in pod["init"])


def guaranteed(cpus: int) -> Json:
    """The resources of a container; none without CPUs."""
    amounts = {"cpu": str(cpus), "memory": "1Gi"} if cpus else {}
    return {"requests": amounts, "limits": amounts}


def pod_json(uid: str, *, init: list[tuple[int, bool]], containers: list[int], whole: int = 0) -> Json:
    """A Guaranteed pod: init containers with their CPUs and whether they are sidecars; with *whole* CPUs if not 0."""
    return {
        "uid": uid,
        "qos": "Guaranteed",
        "init": [
            {"name": f"i{number}", "restartable": sidecar, **guaranteed(cpus)}
            for number, (cpus, sidecar) in enumerate(init)
        ],
        "containers": [
            {"name": f"c{number}", "restartable": False, **guaranteed(cpus)} for number, cpus in enumerate(containers)
        ],
        **({"pod_resources": guaranteed(whole)} if whole else {}),
    }


@st.composite
def pod_jsons(draw: st.DrawFn, uid: str) -> Json:
    """A pod that the API server accepts: pod-level CPUs cover those of its containers."""
    whole = draw(st.booleans())
    cpus = st.integers(0 if whole else 1, 3)
    init = draw(st.lists(st.tuples(cpus, st.booleans()), max_size=3))
    containers = draw(st.lists(cpus, min_size=1, max_size=2))
    together = sum(count for count, sidecar in init if sidecar) + sum(containers)
    needed = max(
        together, *(count + sum(sidecar_count for sidecar_count, sidecar in init if sidecar) for count, _ in init), 1
    )
    return pod_json(uid, init=init, containers=containers, whole=needed + draw(st.integers(0, 2)) if whole else 0)

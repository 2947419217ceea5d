"""Driving a host through a recorded run of the kubelet, step by step, and comparing after each.

Pods come as static pods. What device plugins announced, and what they were asked, is taken from the log of their
calls. Where the kubelet picks devices at random its pick is handed in as an answer, which counts only as far as a host
finds it legitimate; so later steps start from the same state.
"""

import gzip
import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.decision import Decision
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import SettingsError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine
from alignup.align.release import Release
from alignup.align.workload import Pod
from alignup.align.workload.validation import PodSource, accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.recorded.setting import announced, machine_of, release_of, settings_of
from tests.recorded.snapshot import Comparison
from tests.soundness import check_sound

Document = Mapping[str, Any]

HOST = "vm"  #: what the recorded kubelet calls itself
PREFIX = "Pod was rejected: "

UNDECIDED = "the recording ran out of time before the kubelet decided"

#: Steps a host has no notion of, and why.
SKIPPED = {
    "kill_container": "containers are processes",
    "wait": "a host has no clock",
}
#: The state files of a kubelet, and the ledger in each.
FILES = {"cpu_manager_state": "cpu", "memory_manager_state": "memory", "kubelet_internal_checkpoint": "device"}
ENDED = ("admitted-succeeded", "failed")  #: verdicts on pods that ran, and run no more
KEPT_STATE = "bad_config over state files"

_RESTARTED = '"Starting Device Plugin manager"'  #: what a kubelet logs before it admits a pod
_LOGGED = re.compile(
    r'"Processed device updates for resource".* resourceName="(?P<resource>[^"]+)"'
    r'|pod="[^/"]*/(?P<pod>[^"]+)".* operation="add"'
)
_COMMAND_FAILED = re.compile(r'"command failed" err="(.*)"$')
_INVALID = "failed to validate kubelet configuration, error: "


@dataclass
class Run:
    """How one recording went; each step is counted once, and so is the start."""

    name: str
    compared: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.compared + self.apart.total() + self.skipped.total()

    def line(self) -> str:
        apart = "".join(f", {count} apart ({label})" for label, count in sorted(self.apart.items()))
        skipped = "".join(f", {count} skipped ({label})" for label, count in sorted(self.skipped.items()))
        return f"{self.name:<36}{self.compared:>4} compared {len(self.failures):>3} failed{apart}{skipped}"


RUNS = pytest.StashKey[list[Run]]()


class SkippedError(Exception):
    """A step that a host has no notion of."""


class LostError(Exception):
    """From here on the kubelet's state is another than the host's."""


def load(path: Path) -> Document:
    """The recording in a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        recording: Document = json.load(file)
    assert recording["format"] == 1, f"{path.name}: format {recording['format']} is not known here"
    assert recording["steps"], f"{path.name} has no steps"
    return recording


def replay(recording: Document, run: Run) -> None:
    """Replay *recording* into *run*, to its end or to the first step that goes wrong.

    A host that predicts the kubelet has to do the same. One without its defects has to stay sound to the end.
    """
    safe = Course(recording, predict=False, compare=False)
    failure = travel(Course(recording), run) or travel(safe, Run(run.name))
    if failure:
        run.failures.append(failure)


def travel(course: "Course", run: Run) -> str | None:
    """Follow a course, counting into *run*; what went wrong, if anything did."""
    steps = list(course.steps())
    for number, step in steps:
        try:
            labels = course.follow(number, step)
        except SkippedError as skipped:
            run.skipped[str(skipped)] += 1
        except LostError as lost:
            run.apart[str(lost)] += 1
            run.skipped["the kubelet's state is another from there on"] += steps[-1][0] - number
            return None
        except Exception as error:  # noqa: BLE001 - a crash is a failure of this step like any other
            message = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            return f"step {number} ({step['op']}): {message[:3000]}"
        else:
            if labels:
                run.apart["; ".join(sorted(labels))] += 1
            else:
                run.compared += 1
    return None


class Course:
    """A host on its way through a recording, which predicts its kubelet, or does the safe thing and stays sound."""

    host: Host  #: from the start on

    def __init__(self, recording: Document, *, predict: bool = True, compare: bool = True) -> None:
        self.recording, self.predict, self.compare = recording, predict, compare
        self.machine = machine_of(recording)
        self.advising = {plugin["resource"] for plugin in recording["plugins"] if plugin["preferred"]}
        self.places = places(self.machine.devices)
        self.registered = {plugin["resource"] for plugin in recording["plugins"]}  #: whose plugin the kubelet knows
        self.pods: dict[str, Pod] = {}  #: those whose manifest is there, rejected ones among them, by their full name
        self.rejected = False  #: whether a pod was rejected already
        self.stuck: set[str] = set()  #: uids of pods whose memory moved on paper only

    def steps(self) -> Iterator[tuple[int, Document]]:
        """The steps with their numbers; the start, where the kubelet stays up, is one too."""
        if "initial" in self.recording:
            yield -1, {"op": "start", **self.recording["initial"]}
        yield from enumerate(self.recording["steps"])

    def follow(self, number: int, step: Document) -> set[str]:
        """Take one step; the labels of what could not be compared come back."""
        op = step["op"]
        if op in SKIPPED:
            raise SkippedError(f"{op}: {SKIPPED[op]}")
        if op == "bad_config":
            return bad_config(self.machine, step, release_of(self.recording))
        getattr(self, op)(number, step)
        if not self.predict:
            check_sound(self.host, "then")
        if not self.compare:
            return set()
        return Comparison(self.host, step, self.places, stuck=self.stuck, rejected=self.rejected).whole()

    def start(self, number: int, step: Document) -> None:
        """The kubelet starts, and all plugins register."""
        resources = {plugin["resource"] for plugin in self.recording["plugins"]}
        config, release = self.recording["kubelet_config"], release_of(self.recording)
        settings = settings_of(config, self.machine, release, resources=resources)
        self.host = Host(self.machine, replace(settings, kubelet_faults=self.predict))

    def pod(self, number: int, step: Document) -> None:
        """A manifest is written."""
        if step["verdict"] == "undecided":
            raise LostError(UNDECIDED)
        fix = self.host.settings.gates.on("PodLevelResourcesFixDefaulting")
        pod = accept(read_pod(step["manifest"]), source=PodSource.STATIC, host=HOST, fix_pod_level=fix)
        self.pods[pod.name] = pod
        decision = self.admit([pod], number, step)[pod.name]
        if self.compare:
            compare_verdict(decision, step)
        if step["verdict"] in ENDED:
            self.host.release(pod.uid)

    def delete(self, number: int, step: Document) -> None:
        """A manifest is taken away."""
        gone = self.pods.pop(f"{step['name']}-{HOST}")
        self.stuck.discard(gone.uid)
        self.host.release(gone.uid)

    def restart(self, number: int, step: Document) -> None:
        """A new host on the old ledger; resources of removed files are allocated again, in the kubelet's order.

        Devices that a plugin announced before are not allocatable until it has registered again. Containers keep
        theirs.
        """
        before, settings = self.host.ledger, self.host.settings
        lost = {FILES[file] for file in step.get("remove_state", ())}
        ledger = before
        if lost:
            idle = Host(replace(self.machine, devices=()), settings).ledger
            ledger = Ledger(
                cpus=(idle if "cpu" in lost else before).cpus,
                memory=(idle if "memory" in lost else before).memory,
                devices=(idle if "device" in lost else before).devices,
            )
            self.stuck |= before.pods.keys() if "memory" in lost else set()
        self.host = Host(self.machine, settings, ledger=ledger, starting=self.predict)
        self.registered.clear()
        for resource in self.host.ledger.devices.inventories:
            self.host.update_devices(resource, ())
        # The restarted kubelet does not know that a static pod was rejected, so it tries again.
        decisions = self.admit(self.pods_to_restore(number, step["log"]), number, step, running=before.pods)
        shown = {pod["name"]: pod["status"] for pod in step["pods"]}
        for name, decision in decisions.items():
            if self.compare:
                compare_verdict(decision, shown[name])
            if not self.predict:
                assert decision.kept or lost or decision.uid not in before.pods, f"{name} was to keep what it has"
        self.host = Host(self.machine, settings, ledger=self.host.ledger)

    def pods_to_restore(self, number: int, log: Sequence[str]) -> Iterator[Pod]:
        """Yield the pods in the order of their admission, and let plugins announce devices where the log shows it.

        What plugins announce without a line in the log comes before all pods, and pods without one come last.
        """
        restarted = max((index for index, line in enumerate(log) if _RESTARTED in line), default=-1)
        events = [match for line in log[restarted + 1 :] if (match := _LOGGED.search(line))]
        logged = {event["resource"] for event in events}
        announcements: dict[str, deque[Sequence[Device]]] = {}
        for resource, devices in self.plugin_reports(number):
            if resource in logged:
                announcements.setdefault(resource, deque()).append(devices)
            else:
                self.host.update_devices(resource, devices)
        waiting = dict(self.pods)
        for event in events:
            if event["resource"]:
                if queue := announcements.get(event["resource"]):
                    self.host.update_devices(event["resource"], queue.popleft())
            elif event["pod"] in waiting:
                yield waiting.pop(event["pod"])
        yield from waiting.values()
        for resource, queue in announcements.items():
            if queue:
                self.host.update_devices(resource, queue[-1])

    def plugin_start(self, number: int, step: Document) -> None:
        """Plugins announce their devices, or stop."""
        for resource, devices in self.plugin_reports(number):
            self.host.update_devices(resource, devices)

    plugin_stop = plugin_start
    health = plugin_start

    def plugin_reports(self, number: int) -> Iterator[tuple[str, Sequence[Device]]]:
        """Yield what the kubelet learns from plugins in a step: the devices of a resource.

        The kubelet knows a plugin from its registration until the plugin stops or the kubelet restarts. The recording
        plugin sends its devices once more when it stops; a kubelet that restarts then does not use them.
        """
        for call in self.calls(number):
            resource, rpc = call["resource"], call["rpc"]
            if rpc == "Register":
                self.registered.add(resource)
            elif resource not in self.registered:
                continue
            elif rpc == "ListAndWatch" and call["direction"] == "plugin->kubelet":
                devices = announced(resource, call["message"])
                self.places.update(places(devices))
                yield resource, devices
            elif rpc == "stopped":
                self.registered.discard(resource)
                known = self.host.ledger.devices.inventories[resource].devices
                yield resource, [replace(device, healthy=False) for device in known]

    def admit(
        self, pods: Iterable[Pod], number: int, step: Document, *, running: Collection[str] = ()
    ) -> dict[str, Decision]:
        """Admit each, answering for the plugins, and start what was not *running*; the questions are the kubelet's."""
        picks = picked(step)
        asked: Counter[Any] = Counter()
        decisions = {}
        for pod in pods:
            answers: dict[PreferenceRequest, tuple[str, ...]] = {}
            while (decision := self.host.admit(pod, answers)).preference_requests:
                for ask in decision.preference_requests:
                    answers[ask] = self.response(ask, picks)
            asked.update(request_of(ask) for ask in answers if ask.resource in self.advising)
            if decision.admitted and pod.uid not in running:
                for container in pod.all_containers:
                    self.host.start_container(pod.uid, container.name)
            self.rejected |= not decision.admitted
            decisions[pod.name] = decision
        recorded = Counter(recorded_request(call) for call in self.calls(number) if is_preference_request(call))
        assert asked == recorded or not self.compare, f"plugin requests {dict(asked)}, recorded {dict(recorded)}"
        return decisions

    def response(
        self, ask: PreferenceRequest, picks: Mapping[tuple[str, str, str], tuple[str, ...]]
    ) -> tuple[str, ...]:
        """The recording plugin prefers the highest ids; where it is not asked, the kubelet's pick stands."""
        if ask.resource not in self.advising:
            return picks.get((ask.uid, ask.container, ask.resource), ())
        rest = sorted(set(ask.available) - set(ask.must_include), reverse=True)
        return (*ask.must_include, *rest)[: ask.size]

    def calls(self, number: int) -> Iterator[Document]:
        return (call for call in self.recording["plugin_rpc_log"] if call["step"] == number)


def bad_config(machine: Machine, step: Document, release: Release) -> set[str]:
    """The kubelet is started with another configuration: a host takes it, or rejects it in the same words."""
    if step.get("keep_state"):
        raise SkippedError(KEPT_STATE)
    try:
        Host(machine, settings_of(step["config"], machine, release))
    except SettingsError as error:
        rejection = str(error)
    else:
        assert step["verdict"] == "started", f"{step['name']}: taken, recorded {step['log']}"
        return set()
    assert step["verdict"] == "refused", f"{step['name']}: rejected: {rejection}"
    (message,) = [match[1].replace('\\"', '"') for line in step["log"] if (match := _COMMAND_FAILED.search(line))]
    prefix = _INVALID if message.startswith(_INVALID) else "failed to run Kubelet: "
    if prefix == _INVALID:  # all of the configuration follows
        message = message.partition(", path: ")[0]
    assert message == prefix + rejection, f"{step['name']}: {rejection}, recorded {message}"
    return set()


def places(devices: Iterable[Device]) -> dict[tuple[str, str], str]:
    """Where each device is, by resource and id."""
    return {(device.resource, device.id): bits.show(device.nodes) if device.nodes else "none" for device in devices}


def compare_verdict(decision: Decision, shown: Document) -> None:
    """Assert verdict, reason, message and QoS class; *shown* is a step or the status of a pod."""
    rejection = decision.rejection
    ours = (rejection.reason, PREFIX + rejection.message) if rejection else (None, None)
    recorded = (shown.get("reason"), shown.get("message"))
    assert ours == recorded, f"{decision.name} {decision.outcome} {ours}, recorded {shown['phase']} {recorded}"
    assert decision.qos == shown["qosClass"], f"{decision.name} {decision.qos}, recorded {shown['qosClass']}"


def picked(step: Document) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Pod, container and resource → the devices the kubelet gave."""
    entries = json.loads(step["kubelet_internal_checkpoint"])["Data"]["PodDeviceEntries"] or ()
    return {
        (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): tuple(
            {id_ for ids in entry["DeviceIDs"].values() for id_ in ids}
        )
        for entry in entries
    }


def request_of(ask: PreferenceRequest) -> tuple[Any, ...]:
    return ask.resource, frozenset(ask.available), frozenset(ask.must_include), ask.size


def is_preference_request(call: Document) -> bool:
    return bool(call["rpc"] == "GetPreferredAllocation" and call["direction"] == "kubelet->plugin")


def recorded_request(call: Document) -> tuple[Any, ...]:
    (asked,) = call["message"]["container_requests"]
    return (
        call["resource"],
        frozenset(asked["available_deviceIDs"]),
        frozenset(asked["must_include_deviceIDs"]),
        asked["allocation_size"],
    )

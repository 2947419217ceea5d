"""Whole admissions: pods coming and going on one host, devices changing, the kubelet starting again."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision, ResourceHints
from alignup.align.errors import SettingsError
from alignup.align.hint import IMPOSSIBLE, HintList
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, TopologySettings
from alignup.align.workload import Pod
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.conformance.harness import Case, run
from tests.effort import SOAK
from tests.soundness import check_sound
from tests.vector_types import list_of, machine_of

#: ``make test`` looks for unsound admissions in all traces up to this number of events, and in some longer ones.
LONG = 8


@pytest.mark.soak
def test_admissions_are_the_kubelets(request):
    run(request, "e2e", check)


def check(case: Case) -> str | None:
    try:
        host = host_of(case)
    except SettingsError as error:
        assert f"{error.manager} manager: {error}" == case.get("init_error")
        return None
    assert "init_error" not in case, case.get("init_error")
    Trace(host, case).replay()
    if SOAK or len(case["events"]) <= LONG or crc32(case.get("id", "").encode()) % 3 == 0:
        # What we do instead of the kubelet has to be sound to the end of the trace.
        Trace(host_of(case, kubelet_faults=False), case, compare=False).replay()
    return None


def host_of(case: Case, *, kubelet_faults: bool = True) -> Host:
    config = case["config"]
    gates = FeatureGates(config["feature_gates"], case["release"])
    machine = machine_of(case["machine"])
    devices = tuple(
        device for resource, plugin in case["devices"].items() for device in devices_of(resource, plugin["devices"])
    )
    reservation = {name: Quantity.parse(amount) for name, amount in config["node_allocatable_reservation"].items()}
    settings = Settings(
        topology=topology_of(config, gates),
        cpus=CpuSettings(
            policy=config["cpu_manager_policy"],
            options=config["cpu_manager_policy_options"] or {},
            reservation=reservation.get("cpu"),
            explicit=bits.parse(config["reserved_system_cpus"]),
        ),
        memory_policy=config["memory_manager_policy"],
        reserved_memory=tuple(
            ReservedMemory(
                entry["numa_node"], {name: Quantity.parse(amount) for name, amount in entry["limits"].items()}
            )
            for entry in config["reserved_memory"] or ()
        ),
        reservation=reservation,
        gates=gates,
        release=case["release"],
        preferred_allocation=frozenset(
            resource for resource, plugin in case["devices"].items() if plugin["preferred_allocation"]
        ),
        fit_check=False,
        kubelet_faults=kubelet_faults,
    )
    return Host(machine.with_reported(devices), settings)


def topology_of(config: dict[str, Any], gates: FeatureGates) -> TopologySettings:
    try:
        return TopologySettings.parse(
            config["topology_manager_policy"],
            config["topology_manager_scope"],
            options=config["topology_manager_policy_options"] or {},
            gates=gates,
        )
    except SettingsError as error:
        error.manager = "topology"
        raise


def devices_of(resource: str, documents: list[dict[str, Any]]) -> list[Device]:
    return [
        Device(
            resource,
            device["id"],
            None if device["numa"] is None else bits.of(device["numa"]),
            healthy=device["healthy"],
        )
        for device in documents
    ]


class Trace:
    """One trace, event by event, each compared with what the kubelet did."""

    def __init__(self, host: Host, case: Case, *, compare: bool = True) -> None:
        self.host, self.case, self.compare = host, case, compare
        self.pods: dict[str, Pod] = {}
        #: resources whose ids the kubelet chose at random: from then on only counts can be compared
        self.random: set[str] = set()

    def replay(self) -> None:
        self.compare_state(self.case["initial_state"], "initially")
        for number, event in enumerate(self.case["events"]):
            where = f"event {number} ({event['op']})"
            getattr(self, event["op"])(event, where)
            if not self.compare:
                check_sound(self.host, where)

    def add(self, event: Case, where: str) -> None:
        expected = event["expect"]["admit"]
        pod = read_pod({"apiVersion": "v1", "kind": "Pod", **event["pod"]})
        before = self.host.ledger
        decision = self.admit(pod)
        if decision.admitted:
            self.pods[pod.uid] = pod
        if not self.compare:
            assert decision.admitted or self.host.ledger is before, f"{where}: a rejected pod left something behind"
            return
        self.compare_decision(decision, pod, expected, where)
        compare_hints(decision, expected.get("hints"), where)
        self.compare_state(event["expect"]["state"], where)

    def compare_decision(self, decision: Decision, pod: Pod, expected: Case, where: str) -> None:
        got = (decision.admitted, decision.rejection.reason if decision.rejection else "", message(decision))
        messages = {expected["message"], *expected.get("message_alternatives", ())}
        assert got[:2] == (expected["admitted"], expected["reason"]), f"{where}: {got}, expected {expected}"
        assert got[2] in messages, f"{where}: {got[2]!r}, expected {messages}"
        if decision.admitted:
            self.compare_pod(pod, decision, expected, where)

    def admit(self, pod: Pod) -> Decision:
        """Admit, answering for the plugins: what must be, then the lowest of what there is."""
        answers: dict[Any, tuple[str, ...]] = {}
        while True:
            decision = self.host.admit(pod, answers)
            if not decision.preference_requests:
                return decision
            for ask in decision.preference_requests:
                rest = sorted(set(ask.available) - set(ask.must_include))
                answers[ask] = (*ask.must_include, *rest)[: ask.size]

    def compare_pod(self, pod: Pod, decision: Decision, expected: Case, where: str) -> None:
        ledger = self.host.ledger
        hints = {placement.container: placement.hint for placement in decision.placements}
        for name, want in expected["containers"].items():
            mask, preferred = hints[name]
            got_hint = {"mask": None if mask is None else list(bits.members(mask)), "preferred": preferred}
            assert got_hint == want["hint"], f"{where}, {name}: hint {got_hint}, expected {want['hint']}"
            cpus = ledger.cpus.holds(pod.uid, name)
            got_cpus = None if cpus is None else bits.show(cpus)
            assert got_cpus == want["cpus"], f"{where}, {name}: CPUs {got_cpus}, expected {want['cpus']}"
            blocks = [
                {"numa": list(bits.members(block.nodes)), "type": block.type, "size": block.size}
                for block in sorted(ledger.memory.blocks(pod.uid, name) or (), key=lambda block: block.type)
            ]
            assert blocks == want["memory"], f"{where}, {name}: memory {blocks}, expected {want['memory']}"
            self.compare_devices(ledger.devices.holds(pod.uid, name), want.get("devices") or {}, f"{where}, {name}")
        if "pod_cpus" in expected:
            assert bits.show(ledger.cpus.pod_held.get(pod.uid, 0)) == expected["pod_cpus"], where

    def compare_devices(self, held: Any, want: Case, where: str) -> None:
        assert held.keys() == want.keys(), f"{where}: devices {held}, expected {want}"
        for resource, expected in want.items():
            ids = held[resource]
            assert len(ids) == expected["count"], f"{where}: {ids}, expected {expected}"
            if expected["numa_counts"] is not None:
                counts = Counter(self.node_key(resource, id_) for id_ in ids)
                assert counts == expected["numa_counts"], f"{where}: {resource} {dict(counts)}, expected {expected}"
            if expected["ids"] is None:
                self.random.add(resource)
            elif resource not in self.random:
                assert sorted(ids) == sorted(expected["ids"]), f"{where}: {ids}, expected {expected}"

    def node_key(self, resource: str, identity: str) -> str:
        inventory = self.host.ledger.devices.inventories[resource]
        nodes = inventory.devices[inventory.indexes[identity]].nodes
        return ",".join(map(str, bits.members(nodes))) if nodes else "none"

    def start(self, event: Case, where: str) -> None:
        pod = self.pods.get(event["uid"])
        if pod and pod.uid in self.host.ledger.pods:  # it may have been rejected after a restart
            for container in pod.all_containers:
                self.host.start_container(pod.uid, container.name)
        self.compare_state(event["expect"]["state"], where)

    def remove(self, event: Case, where: str) -> None:
        self.host.release(event["uid"])
        if self.pods.pop(event["uid"], None) and self.compare:  # it may have been rejected after a restart
            self.host.ledger = self.host.without_holdings(self.host.ledger, event["uid"])
        self.compare_state(event["expect"]["state"], where)

    def devices(self, event: Case, where: str) -> None:
        for resource, plugin in event["devices"].items():
            self.host.update_devices(resource, devices_of(resource, plugin["devices"]))
        self.compare_state(event["expect"]["state"], where)

    def restart(self, event: Case, where: str) -> None:
        """A new host on the old ledger; a kubelet admits its pods again, with what they hold."""
        if not self.compare:
            self.host = Host(self.host.machine, self.host.settings, ledger=self.host.ledger)
            before = self.host.ledger
            for pod in self.pods.values():
                assert self.admit(pod).kept, f"{where}: {pod.uid} was to keep what it has"
            assert self.host.ledger is before
            return
        self.host = Host(self.host.machine, self.host.settings, ledger=self.host.ledger, starting=True)
        for pod, expected in zip(self.pods.values(), event["expect"].get("readmit") or (), strict=True):
            self.compare_decision(self.admit(pod), pod, expected, f"{where}, {pod.uid}")
        self.compare_state(event["expect"]["state"], where)
        self.host = Host(self.host.machine, self.host.settings, ledger=self.host.ledger)

    def compare_state(self, want: Case, where: str) -> None:
        if not self.compare:
            return
        ledger = self.host.ledger
        static = self.case["config"]["cpu_manager_policy"] == "static"
        shared = bits.show(ledger.cpus.shared) if static else ""
        assert shared == want["default_cpus"], f"{where}: shared {shared}, expected {want['default_cpus']}"
        memory = {
            str(id_): {
                "cells": list_of(node.cells),
                "assignments": node.assignments,
                "tables": {type_: list(table) for type_, table in node.tables.items()},
            }
            for id_, node in ledger.memory.nodes.items()
        }
        wanted_memory = want.get("memory") or {}
        assert memory == wanted_memory, f"{where}: memory {memory}, expected {wanted_memory}"
        free = {}
        for resource, inventory in ledger.devices.inventories.items():
            ids = inventory.names(ledger.devices.free[resource])
            free[resource] = dict(Counter(self.node_key(resource, device_id) for device_id in ids))
        wanted = want.get("free_devices") or {}
        assert free == wanted, f"{where}: free devices {free}, expected {wanted}"


def compare_hints(decision: Decision, expected: list[Case] | None, where: str) -> None:
    """What every provider said, in the order they were asked; on small machines only, since lists grow."""
    if expected is None or decision.policy == "none":
        return
    decided = [
        {"container": step.container, "provider": provider, "hints": provider_hints(step.resources, provider)}
        for step in decision.steps
        for provider in ("device", "cpu", "memory")
    ]
    wanted = [{**entry, "hints": entry["hints"] or None} for entry in expected]
    assert decided == wanted, f"{where}: hints {decided}, expected {wanted}"


def provider_hints(resources: Sequence[ResourceHints], provider: str) -> dict[str, Any] | None:
    """One provider's hints, resource by resource; nothing fits and no opinion both count as no preference."""
    provided = [resource for resource in resources if resource.provider == provider]
    if provider != "device" and all(resource.has_no_preference for resource in provided):
        return None
    return {resource.resource: options(resource) for resource in provided if resource.resource} or None


def options(resource: ResourceHints) -> list[Any] | None:
    if resource.has_no_preference:
        return None
    hints = resource.hints if isinstance(resource.hints, HintList) else HintList.of_family(resource.hints)
    if hints == IMPOSSIBLE:
        return []
    return [[list_of(hint.nodes or 0), hint.preferred] for hint in hints]


def message(decision: Decision) -> str:
    return decision.rejection.message if decision.rejection else ""

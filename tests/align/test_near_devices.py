"""Hosts that act themselves choose near devices, and refuse pods whose demands they cannot satisfy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import alignup
from alignup.align.decision import Decision, Outcome
from alignup.align.devices.provider import NOT_NEAR
from alignup.align.errors import PodError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Machine
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION
from tests.align.hosts import arrivals, hosts

EXAMPLE = alignup.load_machine(Path(__file__).parents[2] / "examples/locality/machine.yaml")
GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def make_host(machine: Machine = EXAMPLE, policy: Policy = Policy.NONE, **settings: Any) -> Host:
    made = Settings(topology=TopologySettings(policy=policy), near_devices=True)
    return Host(machine, replace(made, **settings))


def make_pod(uid: str = "pod", *, gpus: int = 0, nics: int = 0, init: int = 0, demand: str | None = None) -> Pod:
    amounts = {name: Quantity(count) for name, count in ((GPU, gpus), (NIC, nics)) if count}
    return Pod(
        name=uid,
        uid=uid,
        init=(Container("init", Resources(limits={GPU: Quantity(init)})),) if init else (),
        containers=(Container("app", Resources(limits=amounts)),),
        annotations={} if demand is None else {DEVICES_ANNOTATION: demand},
    )


def given_devices(decision: Decision) -> dict[str, tuple[str, ...]]:
    assert decision.admitted, decision.rejection
    return dict(decision.placements[-1].devices)


def test_linked_gpus_are_chosen_and_whole_pairs_stay_free() -> None:
    host = make_host()

    assert given_devices(host.admit(make_pod("a", gpus=2))) == {GPU: ("gpu-0", "gpu-3")}
    assert given_devices(host.admit(make_pod("b", gpus=1))) == {GPU: ("gpu-1",)}
    assert given_devices(host.admit(make_pod("c", gpus=1))) == {GPU: ("gpu-2",)}
    assert given_devices(host.admit(make_pod("d", gpus=2))) == {GPU: ("gpu-4", "gpu-7")}


def test_gpu_and_nic_are_chosen_together() -> None:
    host = make_host()
    host.admit(make_pod("a", nics=1))
    host.admit(make_pod("b", gpus=1))

    assert given_devices(host.decide(make_pod(gpus=1, nics=1))) == {GPU: ("gpu-1",), NIC: ("0000:2f:00.0",)}


def test_a_request_for_no_devices_gets_none() -> None:
    pod = make_pod()
    container = Container("app", Resources(limits={GPU: Quantity(0), NIC: Quantity(1)}))

    decision = make_host().decide(replace(pod, containers=(container,)))

    assert given_devices(decision) == {NIC: ("0000:1f:00.0",)}


def test_the_policy_comes_before_locality() -> None:
    host = make_host(policy=Policy.SINGLE_NUMA_NODE)
    for uid in ("a", "b", "c"):
        host.admit(make_pod(uid, gpus=1))
    host.release("b")  # it has gpu-3, the partner of gpu-0

    decision = host.decide(make_pod(gpus=2))

    assert given_devices(decision) == {GPU: ("gpu-2", "gpu-3")}, "no pair is left on NUMA node 0, which comes first"


def test_a_container_reuses_devices_of_init_containers() -> None:
    decision = make_host().decide(make_pod(init=3, gpus=2))

    init, app = [placement.devices[GPU] for placement in decision.placements]
    assert set(app) < set(init)
    assert app == ("gpu-1", "gpu-2")


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (make_pod(gpus=3, demand="nvlink"), "no choice of devices satisfies nvlink: no NVLink connects gpu-"),
        (make_pod(gpus=3, nics=1, demand="same-switch"), "no choice of devices satisfies same-switch: gpu-"),
    ],
)
def test_a_demand_that_no_choice_satisfies_rejects_the_pod(pod: Pod, reason: str) -> None:
    rejection = make_host().decide(pod).rejection

    assert rejection is not None
    assert (rejection.reason, rejection.container) == (NOT_NEAR, "app")
    assert rejection.message.startswith(reason)


def test_a_demand_counts_more_than_the_lowest_devices() -> None:
    host = make_host()
    host.admit(make_pod("a", gpus=1, nics=1))

    demanded = f"same-switch={GPU},{NIC}; spread"
    assert given_devices(host.decide(make_pod(gpus=1, nics=1, demand=demanded)))[NIC] == ("0000:2f:00.0",)
    host.admit(make_pod("b", nics=1))
    assert host.decide(make_pod(gpus=2, demand="spread")).admitted
    host.admit(make_pod("c", gpus=1, demand="spread"))
    host.admit(make_pod("d", gpus=1, demand="spread"))
    assert not host.decide(make_pod(gpus=1, demand="spread")).admitted


def test_a_machine_that_cannot_say_refuses_demands_in_words() -> None:
    host = make_host(replace(EXAMPLE, pci=(), links=()))

    decision = host.decide(make_pod(gpus=2, demand="same-root"))

    assert decision.rejection is not None
    assert "the PCI address of gpu-0 (nvidia.com/gpu) is not known" in decision.rejection.message
    assert given_devices(host.decide(make_pod(gpus=2))) == {GPU: ("gpu-0", "gpu-1")}


def test_a_wrong_demand_is_a_problem_of_the_pod_for_hosts_that_act() -> None:
    pod = make_pod(gpus=1, demand="nearby")

    with pytest.raises(PodError, match="nearby"):
        make_host().decide(pod)
    assert make_host(near_devices=False).decide(pod).admitted


def test_a_plugin_is_asked_only_if_it_may_know_links_that_the_machine_does_not_tell() -> None:
    asking: dict[str, Any] = {"preferred_allocation": frozenset({GPU})}
    unknown = replace(EXAMPLE, links=())

    assert make_host(**asking).decide(make_pod(gpus=2)).admitted
    assert make_host(unknown, **asking).decide(make_pod(gpus=2)).outcome is Outcome.ASKING
    assert make_host(unknown, **asking).decide(make_pod(gpus=1)).admitted
    assert make_host(unknown, **asking).decide(make_pod(gpus=2, nics=1)).admitted


def test_replicas_of_one_gpu_are_left_to_the_plugin() -> None:
    replicas = [Device(GPU, f"gpu-{gpu}::{number}", nodes=1) for gpu in range(2) for number in range(2)]
    host = make_host(EXAMPLE.with_reported(replicas), preferred_allocation=frozenset({GPU}))

    assert host.decide(make_pod(gpus=2)).outcome is Outcome.ASKING
    assert given_devices(host.decide(make_pod(gpus=2, demand="same-switch"))) == {GPU: ("gpu-0::0", "gpu-0::1")}


@given(st.integers(1, 8), st.integers(0, 2), st.sampled_from(list(Policy)))
def test_predictions_never_use_the_choice(gpus: int, nics: int, policy: Policy) -> None:
    pod = make_pod(gpus=gpus, nics=nics)

    acting, kubelet = (make_host(policy=policy, near_devices=near).predict(pod) for near in (True, False))

    assert acting.placements == kubelet.placements
    assert acting.rejection == kubelet.rejection


@given(hosts(), st.data())
def test_a_machine_without_a_tree_keeps_its_answers(host: Host, data: st.DataObject) -> None:
    acting = Host(host.machine, replace(host.settings, near_devices=True), ledger=host.ledger)
    for uid in "abc":
        pod = data.draw(arrivals(uid))
        decisions = [each.decide(pod) for each in (host, acting)]
        assert decisions[0].placements == decisions[1].placements
        assert decisions[0].rejection == decisions[1].rejection
        if decisions[0].admitted:
            host.apply(decisions[0])
            acting.apply(decisions[1])

"""A host from outside: deciding, applying, releasing, restarting, and what it rejects to work with."""

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Outcome
from alignup.align.devices.provider import DeviceProvider
from alignup.align.errors import AlignError, PodError, QuantityError, SettingsError, StateError
from alignup.align.host import Host, Settings, node_allocatable
from alignup.align.machine import CadvisorNode, CadvisorReport, Cpu, Device, HugePages, Machine, NumaNode
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept
from alignup.kubernetes.configuration import load_settings
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from tests.align.hosts import GIB, GPU, RESERVATION, make_host, make_pod
from tests.strategies_pods import amounts, container

STATIC = CpuSettings(policy="static", reservation=RESERVATION["cpu"])


def test_deciding_changes_nothing():
    host = make_host()
    before = host.ledger

    first, second = host.decide(make_pod()), host.decide(make_pod())

    assert first.admitted
    assert first == second
    assert host.ledger is before


def test_a_decision_is_applied():
    host = make_host()
    decision = host.decide(make_pod(gpu="1"))

    host.apply(decision)

    assert list(host.ledger.pods) == ["a"]
    assert host.ledger.cpus.holds("a", "app") == 0b110
    assert host.ledger.devices.holds("a", "app") == {GPU: ("gpu-0",)}


def test_admitting_and_releasing_pods_leaks_no_memory():
    """A host that has seen hundreds of pods is no larger than one that has seen a few."""
    host = make_host()

    def come_and_go(turns):
        for turn in range(turns):
            host.admit(make_pod(f"pod-{turn}", gpu="1"))
            host.release(f"pod-{turn}")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = come_and_go(20)
        many = come_and_go(200)
    finally:
        tracemalloc.stop()

    assert many - few < 20_000


def test_a_decision_on_a_ledger_that_has_changed_since_is_not_applied():
    host = make_host()
    stale = host.decide(make_pod("a"))
    host.admit(make_pod("b"))

    with pytest.raises(StateError, match="changed since the decision on pod a"):
        host.apply(stale)


def test_a_rejection_is_not_applied():
    host = make_host()
    rejected = host.decide(make_pod(cpu="5"))

    with pytest.raises(StateError, match="pod a was not admitted"):
        host.apply(rejected)


def test_releasing_an_unknown_pod_does_nothing():
    host = make_host()
    before = host.ledger

    host.release("unknown")

    assert host.ledger is before


@pytest.mark.parametrize(
    ("uid", "name", "message"),
    [
        pytest.param("b", "app", "there is no pod b", id="no such pod"),
        pytest.param("a", "other", "pod a has no container other", id="no such container"),
    ],
)
def test_only_known_containers_can_start(uid, name, message):
    host = make_host()
    host.admit(make_pod("a"))

    with pytest.raises(StateError, match=message):
        host.start_container(uid, name)


def test_devices_come_and_go_by_plugin_reports():
    host = make_host()
    assert not host.decide(make_pod(gpu="2")).admitted

    host.update_devices(GPU, [Device(GPU, "x", nodes=0b10), Device(GPU, "y", nodes=0b10)])

    placement = host.decide(make_pod(gpu="2")).placements[0]
    assert placement.hint.nodes == 0b10
    assert placement.as_text()["device"] == {GPU: "x,y"}


class TestAsking:
    """Plugins that want to be asked which of their devices go well together."""

    @staticmethod
    def host() -> Host:
        host = make_host(preferred_allocation=frozenset({GPU}))
        host.update_devices(GPU, [Device(GPU, f"gpu-{number}", nodes=0b01) for number in range(3)])
        return host

    def test_preferences_are_requested_and_nothing_is_allocated(self):
        host = self.host()
        before = host.ledger

        decision = host.admit(make_pod(gpu="2"))

        assert decision.outcome is Outcome.ASKING
        assert not decision.admitted
        assert [(ask.resource, ask.size, ask.available) for ask in decision.preference_requests] == [
            (GPU, 2, ("gpu-0", "gpu-1", "gpu-2"))
        ]
        assert host.ledger is before

    def test_the_answer_is_used(self):
        host = self.host()
        (ask,) = host.decide(make_pod(gpu="2")).preference_requests

        decision = host.admit(make_pod(gpu="2"), {ask: ("gpu-0", "gpu-2")})

        assert decision.admitted
        assert decision.placements[0].as_text()["device"] == {GPU: "gpu-0,gpu-2"}

    def test_a_plugin_error_rejects_the_pod_with_the_kubelets_message(self):
        host = self.host()
        before = host.ledger
        (ask,) = host.decide(make_pod(gpu="2")).preference_requests

        decision = host.admit(make_pod(gpu="2"), {ask: "it is on fire"})

        assert decision.rejection
        assert decision.rejection.reason == "UnexpectedAdmissionError"
        assert decision.rejection.message == (
            "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: it is on fire, "
            "which is unexpected"
        )
        assert host.ledger is before


class TestRestart:
    def test_a_ledger_with_unknown_providers_is_rejected(self):
        host = make_host()
        alien = replace(host.ledger, others={"cache": {}})

        with pytest.raises(StateError, match="unknown provider cache"):
            Host(host.machine, host.settings, ledger=alien)

    def test_a_provider_that_is_new_starts_idle(self):
        class Spare(DeviceProvider):
            name = "spare"

        host = make_host()
        host.admit(make_pod())

        other = Host(host.machine, host.settings, ledger=host.ledger, others=[Spare(host.view.all_nodes)])

        assert other.ledger.others["spare"] == Spare(host.view.all_nodes).initial_ledger()
        assert other.ledger.cpus is host.ledger.cpus
        assert other.admit(make_pod()).kept


def test_provider_names_must_be_unique():
    with pytest.raises(AlignError, match="provider names must be unique"):
        Host(make_host().machine, others=[DeviceProvider(0b11)])


class TestSettings:
    """What a kubelet would not start with, a host does not either, and says whose fault it is."""

    @pytest.mark.parametrize(
        ("settings", "manager", "message"),
        [
            pytest.param(
                Settings(topology=TopologySettings(policy=Policy.RESTRICTED)),
                "topology",
                "unsupported on machines with more than 8 NUMA Nodes",
                id="too many nodes",
            ),
            pytest.param(Settings(memory_policy="Most"), "memory", 'unknown policy: "Most"', id="no such policy"),
            pytest.param(
                Settings(
                    cpus=replace(STATIC, options={"align-by-socket": "true"}),
                    gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True}),
                    pod_policy_annotations=True,
                ),
                "cpu",
                "incompatible with CPUManager align-by-socket",
                id="pods may choose what align-by-socket does not go with",
            ),
        ],
    )
    def test_rejected(self, settings, manager, message):
        machine = parse("numa:9 core:2 pu:1")

        with pytest.raises(SettingsError, match=message) as caught:
            Host(machine, settings)

        assert caught.value.manager == manager

    def test_without_settings_a_host_aligns_nothing(self):
        host = Host(parse("numa:2 core:2 pu:1"))

        decision = host.admit(make_pod(cpu="1", memory="1Mi"))

        assert decision.admitted
        assert decision.steps == ()
        assert decision.placements[0].as_text() == {}


class TestFit:
    """The host as a whole must have room too."""

    def test_allocatable_is_capacity_less_reservation(self):
        machine = parse("numa:2 core:2 pu:2", memory=4 * GIB, hugepages=(HugePages(2 << 20, 512),))
        reservation = amounts({"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "2Mi"})

        room = node_allocatable(machine, Settings(reservation=reservation, max_pods=7))

        assert (room.milli_cpu, room.memory, room.pods) == (6500, 5 * GIB, 7)
        assert room.scalars == {"hugepages-2Mi": 2 * GIB - (2 << 20)}

    @pytest.mark.parametrize("reserved", [-(1 << 63), 0, 1 << 63])
    def test_memory_of_unknown_size_rejects_no_pod(self, reserved):
        machine = Machine(cpus=(Cpu(0, core=0, socket=0, node=0),), nodes=(NumaNode(0, None),))
        host = Host(machine, Settings(reservation={"memory": Quantity.of(reserved)}))

        assert host.admit(make_pod(cpu="1", memory="1Pi")).admitted

    @pytest.mark.parametrize(
        ("asked", "reason", "short"),
        [
            pytest.param({"cpu": "7500m"}, "OutOfcpu", ("cpu", 7500, 7000), id="CPU"),
            pytest.param({"memory": "33Gi"}, "OutOfmemory", ("memory", 33 * GIB, 32 * GIB - (64 << 20)), id="memory"),
            pytest.param({"cpu": "1", GPU: "3"}, f"OutOf{GPU}", (GPU, 3, 2), id="devices"),
        ],
    )
    def test_a_pod_that_does_not_fit_is_rejected(self, asked, reason, short):
        """CPU and memory managers ignore the limits of a Burstable pod, and it is not aligned."""
        host = make_host(Policy.NONE)
        wanted = Pod(name="a", uid="a", containers=(container("app", asked),))

        decision = host.admit(wanted)

        assert decision.rejection
        assert decision.rejection.reason == reason
        assert [
            (shortfall.resource, shortfall.needed, shortfall.free) for shortfall in decision.rejection.shortfalls
        ] == [short]
        assert {shortfall.provider for shortfall in decision.rejection.shortfalls} == {"host"}

    def test_the_number_of_pods_is_limited(self):
        host = make_host(max_pods=1)
        host.admit(make_pod("a"))

        decision = host.admit(make_pod("b"))

        assert decision.rejection
        assert decision.rejection.reason == "OutOfpods"

    def test_the_fit_check_can_be_turned_off(self):
        host = make_host(Policy.NONE, fit_check=False)

        assert host.admit(Pod(name="a", uid="a", containers=(container("app", {"cpu": "64"}),))).admitted


def document(*containers: dict) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "a"},
        "spec": {"containers": list(containers)},
    }


class TestBadInput:
    """The whole road: a document is read, accepted as the API server would, and admitted."""

    def test_a_valid_pod_is_admitted(self):
        limits = {"cpu": "2", "memory": "1Gi", GPU: "1"}
        written = document({"name": "app", "resources": {"limits": limits}})

        decision = make_host().admit(accept(read_pod(written)))

        assert decision.admitted
        assert decision.qos == "Guaranteed"
        assert decision.placements[0].as_text() == {
            "device": {GPU: "gpu-0"},
            "cpu": {"cpu": "1-2"},
            "memory": {"memory": f"0={GIB}"},
        }

    @pytest.mark.parametrize(
        ("resources", "problem"),
        [
            pytest.param(
                {"requests": {"cpu": "-1"}},
                'spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
                id="a negative request",
            ),
            pytest.param(
                {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
                'spec.containers[0].resources.requests: Invalid value: "2Gi": '
                "must be less than or equal to memory limit of 1Gi",
                id="a limit below the request",
            ),
            pytest.param(
                {"limits": {GPU: "500m"}},
                f'spec.containers[0].resources.limits[{GPU}]: Invalid value: "500m": must be an integer',
                id="half a device",
            ),
            pytest.param(
                {"requests": {GPU: "1"}},
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable",
                id="a device without a limit",
            ),
            pytest.param(
                {"limits": {"cpu": "a lot"}},
                "spec.containers[0].resources.limits[cpu]: quantities must match the regular expression",
                id="no amount at all",
            ),
        ],
    )
    def test_a_malformed_amount_is_rejected_by_its_field(self, resources, problem):
        written = document({"name": "app", "resources": resources})

        with pytest.raises(PodError) as caught:
            make_host().admit(accept(read_pod(written)))

        assert any(str(reported).startswith(problem) for reported in caught.value.problems), caught.value.problems

    def test_a_duplicate_container_name_is_rejected(self):
        written = document({"name": "app"}, {"name": "app"})

        with pytest.raises(PodError) as caught:
            make_host().admit(accept(read_pod(written)))

        assert str(caught.value) == 'spec.containers[1].name: Duplicate value: "app"'

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            pytest.param(replace(make_pod(), uid=""), "metadata.uid", id="no uid"),
            pytest.param(
                replace(make_pod(), containers=(container("app"), container("app"))),
                "spec.containers[1].name",
                id="two containers of one name",
            ),
            pytest.param(
                replace(make_pod(), init=(container("app"),)), "spec.initContainers[0].name", id="an init container too"
            ),
            pytest.param(make_pod(cpu="-2"), "spec.containers[0].resources.limits[cpu]", id="negative CPUs"),
            pytest.param(
                replace(make_pod(), overhead=amounts({"cpu": "-1m"})),
                "spec.overhead.limits[cpu]",
                id="negative overhead",
            ),
            pytest.param(
                replace(make_pod(), resources=Resources(amounts({"memory": "-1"}))),
                "spec.resources.requests[memory]",
                id="a negative request of the pod as a whole",
            ),
        ],
    )
    def test_pods_that_would_corrupt_the_ledger_are_rejected(self, bad, field):
        host = make_host()
        before = host.ledger

        with pytest.raises(PodError) as caught:
            host.admit(bad)

        assert field in [problem.field for problem in caught.value.problems]
        assert host.ledger is before


def test_devices_of_another_resource_are_rejected():
    host = make_host()
    before = host.ledger

    with pytest.raises(StateError, match=r"devices of example\.com/other were reported as"):
        host.update_devices(GPU, [Device("example.com/other", "x", nodes=1)])

    assert host.ledger is before


def test_a_machine_without_numa_nodes_is_rejected():
    """cAdvisor makes up node -1 where a system has no NUMA nodes and its sockets are unknown."""
    hardware = parse("pack:1 core:2 pu:1")
    unknown = CadvisorReport(
        cpus=tuple(replace(cpu, node=-1, socket=-1) for cpu in hardware.cpus),
        num_cpus=2,
        num_sockets=1,
        nodes=(CadvisorNode(-1),),
    )

    with pytest.raises(SettingsError, match="NUMA node -1") as caught:
        Host(replace(hardware, report=unknown), Settings(topology=TopologySettings(policy=Policy.RESTRICTED)))

    assert caught.value.manager == "topology"
    assert Host(replace(hardware, report=unknown), Settings()).admit(make_pod(cpu="1")).admitted


NOTHING: Any = None
DOCUMENT: Any = {"kind": "Pod"}
TEXT: Any = "1.35"
LIST: Any = [0]


def decide_on(containers: Any) -> Any:
    return make_host().decide(Pod(name="p", uid="p", containers=containers))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Host(NOTHING), "Host needs a Machine, not NoneType; alignup.load_machine reads one"),
        (lambda: Host(make_host().machine, NOTHING), "Host needs a Settings, not NoneType; alignup.load_settings"),
        (lambda: make_host().decide(DOCUMENT), "a decision needs a Pod, not dict; alignup.load_pods reads pods"),
        (lambda: make_host().admit(NOTHING), "a decision needs a Pod, not NoneType"),
        (lambda: make_host().apply(NOTHING), "apply needs a Decision, not NoneType; host.decide returns one"),
        (
            lambda: Host(make_host().machine, Settings(topology=TEXT)),
            "Settings.topology needs a TopologySettings, not str",
        ),
        (lambda: Host(make_host().machine, Settings(release=TEXT)), "Settings.release needs a Release, not str"),
        (lambda: decide_on(TEXT), "pod p: containers needs a tuple, not str"),
        (lambda: decide_on((TEXT,)), r"pod p: containers\[0\] needs a Container, not str"),
        (lambda: decide_on((Container("a", DOCUMENT),)), r"containers\[0\].resources needs a Resources, not dict"),
        (lambda: make_host().decide(replace(make_pod(), resources=DOCUMENT)), "pod a: resources needs a Resources"),
        (
            lambda: Device("example.com/gpu", "a", nodes=LIST),
            "Device.nodes needs a set of NUMA nodes as an int, not list",
        ),
        (lambda: Device("example.com/gpu", "a", node=TEXT), "Device needs the number of a NUMA node, not str"),
        (lambda: load_settings("kubelet.yaml", TEXT), "load_settings needs a Machine, not str; alignup.load_machine"),
    ],
)
def test_arguments_of_another_type_are_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_reservations_may_be_text():
    reservation: Any = {"cpu": "1", "memory": "64Mi"}
    share: Any = {"memory": "64Mi"}
    cpus: Any = {"policy": "static", "reservation": "1"}
    settings = Settings(
        cpus=CpuSettings(**cpus),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(0, share),),
        reservation=reservation,
    )

    host = Host(make_host().machine, settings)

    assert host.cpus.reserved.bit_count() == 1
    assert host.memory.reserved[0] == {"memory": 64 << 20}
    with pytest.raises(QuantityError, match=r'reservation: "1 core": .*; write 1'):
        CpuSettings(**{**cpus, "reservation": "1 core"})


@pytest.mark.parametrize(
    ("version", "faults", "devices"), [("1.37", True, ("dev0",)), ("1.38", True, None), ("1.37", False, None)]
)
def test_a_device_may_go_to_two_pods_while_a_plugin_answers(version, faults, devices):
    """A call of PodResources between the choice of a plugin's device and its answer, as in kubernetes#137534."""
    machine = replace(parse("pack:1 numa:1(memory=8GiB) core:4 pu:1"), devices=(Device(GPU, "dev0", nodes=1),))
    settings = Settings(release=find_release(version), kubelet_faults=faults, fit_check=False)
    host = Host(machine, settings)
    first, second = (replace(make_pod(name, cpu="1", gpu="1"), uid=name) for name in ("first", "second"))
    host.admit(first)

    decision = host.during_allocation("first").decide_without_plugins(second)

    if devices is None:
        assert decision.rejection is not None
        assert "requested number of devices unavailable for" in decision.rejection.message
    else:
        assert decision.placements[0].devices == {GPU: devices}
    assert not host.decide_without_plugins(second).admitted

"""Checks of state files: every problem is found, and a kubelet starts on the repaired file."""

import json
from dataclasses import replace
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuOptions, CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.settings import FeatureGates
from alignup.doctor.configuration import ManagerConfig
from alignup.doctor.findings import Finding, Severity
from alignup.doctor.state_check import StateCheck, StateFiles, check_state
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import DEVICE_PATH, CpuState, DeviceEntry, DeviceState, MemoryState
from tests.conformance import memory_cases
from tests.conformance.cpu_cases import gates_of, held_of, sets_of
from tests.doctor.helpers import GIB, MEMORY, STATIC, by_severity, cases, check, kubelet_error, machine
from tests.vector_types import view_of

CPU, MEM = state_files.CPU_FILE, state_files.MEMORY_FILE
NO_GATES = FeatureGates()
POD_LEVEL: dict[str, Any] = {"featureGates": {"PodLevelResourceManagers": True}}


def config(on: str = "pack:2 numa:1 core:4 pu:2", **fields: Any) -> ManagerConfig:
    return check(machine(on), **{**STATIC, **MEMORY, **fields}).manager_config


def check_file(name: str, data: bytes, on: ManagerConfig, **pods: str) -> StateCheck:
    return check_state(StateFiles(texts={name: data}, directory="DIR"), on, pods=pods)


def about(checked: StateCheck, name: str) -> list[Finding]:
    return [finding for finding in checked.findings if finding.where == name]


def cpus(default: str, gates: FeatureGates = NO_GATES, policy: str = "static", **held: dict[str, str]) -> bytes:
    entries = {uid: {name: bits.parse(text) for name, text in containers.items()} for uid, containers in held.items()}
    return state_files.dump_cpu_state(
        CpuState(policy=policy, default=bits.parse(default), entries=entries), gates=gates
    )


def repaired_cpus(checked: StateCheck, gates: FeatureGates = NO_GATES) -> CpuState:
    (repair,) = checked.repairs
    return state_files.parse_cpu_state(repair.after, configured_policy="static", gates=gates, path="")


def repaired_memory(checked: StateCheck, gates: FeatureGates = NO_GATES) -> MemoryState:
    (repair,) = checked.repairs
    return state_files.parse_memory_state(repair.after, configured_policy="Static", gates=gates, path="")


def memory(idle: MemoryLedger, *, nodes: Any = None, **held: tuple[Block, ...]) -> bytes:
    """The file of containers named ``app`` with these blocks."""
    ledger = idle
    for uid, blocks in held.items():
        ledger = ledger.give(uid, "app", blocks=blocks)
    state = MemoryState(policy="Static", machine_state=ledger.nodes if nodes is None else nodes, entries=ledger.held)
    return state_files.dump_memory_state(state, gates=NO_GATES)


class TestVectors:
    """Files that a real kubelet rejected or accepted."""

    @pytest.mark.parametrize("name", ["cpu", "memory"])
    def test_every_damaged_file_is_reported_and_repaired(self, request, name):
        policies = {"cpu": "cpuManagerPolicy", "memory": "memoryManagerPolicy"}
        for case in cases(request, f"checkpoints/index-{name}.jsonl"):
            path = request.config.getoption("--vectors") / "checkpoints" / case["file"]
            gates = dict.fromkeys(case["gates"], True)
            on = config(featureGates=gates, **{policies[name]: case["configured_policy"]})
            file = {"cpu": CPU, "memory": MEM}[name]

            checked = check_state(StateFiles(texts={file: path.read_bytes()}, directory="<DIR>"), on)

            if case["error"] is not None:
                assert case["error"] in [
                    finding.kubelet_message for finding in by_severity(Severity.ERROR, checked.findings)
                ], case
                assert all(finding.advice for finding in by_severity(Severity.ERROR, checked.findings)), case
            rejected = kubelet_error(file, path.read_bytes(), on)
            assert bool(by_severity(Severity.ERROR, checked.findings)) == bool(rejected), (case, rejected)
            if rejected:
                (repair,) = checked.repairs
                assert not kubelet_error(file, repair.after, on), case
                assert not check_state(StateFiles(texts={file: repair.after}), on).repairs, case

    def test_invalid_cpu_assignments_are_repaired(self, request):
        for case in cases(request, "cpu_validate.jsonl.gz"):
            gates = gates_of(case["gates"])
            provider = CpuProvider(
                view=view_of(case["topology"]),
                policy=CpuPolicy.STATIC,
                options=CpuOptions(strict_cpu_reservation=case["strict"]),
                reserved=bits.parse(case["reserved"]),
                pod_level=gates.on("PodLevelResourceManagers"),
                kubelet_faults=True,
            )
            on = ManagerConfig(gates=gates, cpu_policy="static", cpus=provider)
            state = CpuState(
                policy="static",
                default=bits.parse(case["default"]),
                entries=held_of(case["assignments"]),
                pod_entries=sets_of(case.get("pod_assignments")),
            )

            checked = check_file(CPU, state_files.dump_cpu_state(state, gates=gates), on)

            errors = by_severity(Severity.ERROR, checked.findings)
            assert bool(errors) == bool(case["errors"]), case
            if errors:
                assert errors[0].kubelet_message in case["errors"], case
                assert not kubelet_error(CPU, checked.repairs[0].after, on), case

    def test_invalid_memory_assignments_are_repaired(self, request):
        for case in cases(request, "memory_validate.jsonl.gz"):
            on = ManagerConfig(gates=NO_GATES, memory_policy="Static", memory=memory_cases.idle_of(case["machine"]))
            state = MemoryState(
                policy="Static",
                machine_state=memory_cases.state_of(case["machine_state"]),
                entries=memory_cases.held_of(case["assignments"]),
            )

            checked = check_file(MEM, state_files.dump_memory_state(state, gates=NO_GATES), on)

            errors = by_severity(Severity.ERROR, checked.findings)
            assert bool(errors) == ("ok" not in case["outcomes"]), case
            if errors:
                assert errors[0].kubelet_message in case["outcomes"], case
            for repair in checked.repairs:
                assert not kubelet_error(MEM, repair.after, on), case


class TestCpus:
    """``cpu_manager_state`` on CPUs 0-15, of which 0-1 are reserved."""

    @pytest.mark.parametrize(
        ("text", "severity", "summary", "kept"),
        [
            pytest.param(
                cpus("0-15", a={"app": "16-17"}),
                Severity.ERROR,
                "pod a container app holds CPUs 16-17: the machine has no CPUs 16-17",
                {},
                id="CPUs that are gone",
            ),
            pytest.param(
                cpus("0,2-13", a={"app": "1"}, b={"app": "14-15"}),
                Severity.ERROR,
                "pod a container app holds CPU 1: CPU 1 must stay reserved",
                {"b": {"app": bits.parse("14-15")}},
                id="CPUs that are reserved now",
            ),
            pytest.param(
                cpus("0-13", a={"app": "14-15"}, b={"app": "15"}),
                Severity.WARNING,
                "pod b container app holds CPU 15: pod a holds CPU 15 too",
                {"a": {"app": bits.parse("14-15")}},
                id="CPUs of two pods",
            ),
            pytest.param(
                cpus("0-15", a={"app": "14-15"}),
                Severity.ERROR,
                "CPUs 14-15 in the shared pool and exclusive to a container",
                {"a": {"app": bits.parse("14-15")}},
                id="shared and exclusive",
            ),
            pytest.param(
                cpus("0-11", a={"app": "14-15"}),
                Severity.ERROR,
                "CPUs 12-13 neither in the shared pool nor exclusive: new, formerly reserved, or lost",
                {"a": {"app": bits.parse("14-15")}},
                id="CPUs that are new",
            ),
            pytest.param(
                cpus("0-17"),
                Severity.ERROR,
                "CPUs 16-17 in the shared pool, but not on this machine, or offline",
                {},
                id="shared CPUs that are gone",
            ),
            pytest.param(
                cpus("2-15"),
                Severity.ERROR,
                "CPUs 0-1 reserved, but not in the shared pool: other CPUs were reserved when the file was written, "
                "or strict-cpu-reservation was on",
                {},
                id="the reservation changed",
            ),
            pytest.param(
                cpus("", policy="none"),
                Severity.ERROR,
                'the file has policy "none", but "static" is configured; the kubelet does not start',
                {},
                id="another policy",
            ),
        ],
    )
    def test_invalid_entries_are_reported_and_the_rest_is_kept(self, text, severity, summary, kept):
        on = config()

        checked = check_file(CPU, text, on)

        assert summary in [finding.summary for finding in by_severity(severity, checked.findings)]
        state = repaired_cpus(checked)
        assert state.entries == kept
        assert state.default == bits.parse("0-15") & ~bits.union(
            v for containers in kept.values() for v in containers.values()
        )

    def test_the_reservation_may_have_become_strict(self):
        on = config(cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})

        checked = check_file(CPU, cpus("0-15"), on)

        assert about(checked, CPU)[0].summary.startswith("CPUs 0-1 reserved, but in the shared pool: strict-cpu-")
        assert not kubelet_error(CPU, checked.repairs[0].after, on)

    def test_without_shared_cpus_the_smallest_pod_is_dropped(self):
        on = config(cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})

        checked = check_file(CPU, cpus("", a={"app": "2-9"}, b={"app": "10-11"}, c={"app": "12-15"}), on)

        (error,) = by_severity(Severity.ERROR, checked.findings)
        assert error.kubelet_message == "default cpuset cannot be empty"
        assert error.summary.startswith("pod b holds CPUs 10-11: the shared pool would be empty")
        assert "dropped: pod b, CPUs 10-11" in checked.repairs[0].done
        assert not kubelet_error(CPU, checked.repairs[0].after, on)

    def test_of_two_pods_the_running_one_keeps_its_cpus(self):
        checked = check_file(CPU, cpus("0-13", a={"app": "14-15"}, b={"app": "15"}), config(), b="shop/web")

        assert checked.repairs[0].done == (
            "restored from its contents",
            "kept: the CPUs of pod shop/web",
            "dropped: pod a container app, CPUs 14-15",
        )
        assert "held by a, not among the given pods" in by_severity(Severity.NOTE, checked.findings)[0].summary

    def test_policy_none_drops_all_cpus(self):
        on = config(cpuManagerPolicy="none")

        checked = check_file(CPU, cpus("0-13", a={"app": "14-15"}), on)

        (error,) = by_severity(Severity.ERROR, checked.findings)
        assert error.summary.startswith('the file has policy "static", but "none" is configured')
        assert checked.repairs[0].after == state_files.dump_cpu_state(CpuState(policy="none"), gates=NO_GATES)
        assert checked.repairs[0].done[1] == "dropped: pod a container app, CPUs 14-15"

    def test_an_invalid_list_is_dropped(self):
        contents = {"policyName": "static", "defaultCpuSet": "0-13", "entries": {"a": {"app": "3-1", "x": "14-15"}}}

        checked = check_file(CPU, json.dumps(contents).encode(), config())

        assert by_severity(Severity.ERROR, checked.findings)[-1].summary == (
            'pod a container app holds CPUs "3-1": the list is invalid (invalid range "3-1" (3 > 1))'
        )
        assert repaired_cpus(checked).entries == {"a": {"x": bits.parse("14-15")}}

    def test_an_older_version_is_fine(self):
        contents = {"policyName": "static", "defaultCpuSet": "0-15"}

        checked = check_file(CPU, json.dumps(contents).encode(), config())

        assert not checked.repairs
        assert [finding.summary for finding in by_severity(Severity.NOTE, checked.findings)] == [
            "version 2, from an older kubelet: it is read, and rewritten as version 4"
        ]

    def test_a_changed_copy_is_rewritten(self):
        text = cpus("0-15")
        other = text.replace(b'"defaultCpuSet":"0-15"', b'"defaultCpuSet":"0-14"', 1)

        checked = check_file(CPU, other, config())

        (warning,) = by_severity(Severity.WARNING, checked.findings)
        assert warning.summary.startswith("the copy for older kubelets differs from the contents; this kubelet ignores")
        assert checked.repairs[0].after == text

    def test_an_empty_file_loses_all_allocations(self):
        checked = check_file(CPU, b"", config())

        assert checked.repairs[0].done[0] == "restored from nothing: an empty state"
        assert (
            checked.repairs[0]
            .done[1]
            .startswith("all allocations of CPUs are lost; at startup the kubelet allocates again")
        )

    def test_nothing_is_repaired_while_the_configuration_is_invalid(self):
        on = config(reservedSystemCPUs="0-99")

        checked = check_file(CPU, b"{", on)

        assert not checked.repairs
        assert by_severity(Severity.ERROR, checked.findings)[0].advice.startswith("fix the configuration first")

    def test_pod_level_allocations_are_kept_or_dropped_whole(self):
        on = config(**POD_LEVEL)
        state = CpuState(
            policy="static",
            default=bits.parse("0-5"),
            entries={"a": {"app": bits.parse("6-7")}, "b": {"app": bits.parse("10")}},
            pod_entries={"a": bits.parse("6-9"), "b": bits.parse("10-17"), "c": bits.parse("11-15")},
        )

        checked = check_file(CPU, state_files.dump_cpu_state(state, gates=on.gates), on)

        after = repaired_cpus(checked, on.gates)
        assert after.pod_entries == {"a": bits.parse("6-9")}
        assert after.entries == {"a": {"app": bits.parse("6-7")}}
        assert "dropped: pod c, CPUs 11-15" in checked.repairs[0].done

    def test_valid_resize_baselines_are_kept(self):
        on = config(featureGates={"InPlacePodVerticalScalingExclusiveCPUs": True})
        held = {"a": {"app": bits.parse("4-7")}, "b": {"app": bits.parse("8-9")}}
        before = {"a": {"app": bits.parse("4-5")}, "b": {"app": bits.parse("99")}}
        state = CpuState(policy="static", default=bits.parse("0-3,10-14"), entries=held, baselines=before)

        checked = check_file(CPU, state_files.dump_cpu_state(state, gates=on.gates), on)

        after = repaired_cpus(checked, on.gates)
        assert after.baselines == {"a": {"app": bits.parse("4-5")}, "b": {"app": bits.parse("8-9")}}


class TestMemory:
    """``memory_manager_state`` on two nodes of 16 GiB, with 1 GiB reserved on node 0."""

    @pytest.fixture
    def idle(self):
        checked = config().memory
        assert checked
        return checked

    def test_another_reservation_keeps_all_allocations(self, idle):
        text = memory(idle, a=(Block(0b11, "memory", 20 * GIB),))
        on = config(systemReserved={"memory": "1948Mi"}, reservedMemory=[{"numaNode": 1, "limits": {"memory": "2Gi"}}])

        checked = check_file(MEM, text, on)

        assert [
            (finding.summary, finding.kubelet_message) for finding in by_severity(Severity.ERROR, checked.findings)
        ] == [
            (
                "NUMA node 0: 1Gi of memory was reserved when the file was written, now 0",
                "[memorymanager] the expected machine state is different from the real one",
            ),
            ("NUMA node 1: 0 of memory was reserved when the file was written, now 2Gi", ""),
        ]
        assert repaired_memory(checked).entries == {"a": {"app": (Block(0b11, "memory", 20 * GIB),)}}
        assert not kubelet_error(MEM, checked.repairs[0].after, on)

    def test_memory_that_no_longer_fits_is_dropped(self, idle):
        text = memory(idle, a=(Block(0b1, "memory", 15 * GIB),), b=(Block(0b10, "memory", 16 * GIB),))
        on = config(systemReserved={"memory": "1948Mi"}, reservedMemory=[{"numaNode": 1, "limits": {"memory": "2Gi"}}])

        checked = check_file(MEM, text, on)

        assert by_severity(Severity.ERROR, checked.findings)[-1].summary == (
            "pod b container app holds 16Gi of memory on NUMA node 1: only 14Gi of memory is left on NUMA node 1"
        )
        assert set(repaired_memory(checked).entries) == {"a"}

    @pytest.mark.parametrize(
        ("block", "reason"),
        [
            pytest.param(Block(0b100, "memory", 1), "the machine has no NUMA node 2", id="a missing node"),
            pytest.param(Block(0b1, "hugepages-1Gi", 0), "NUMA node 0 no longer has hugepages-1Gi", id="type"),
            pytest.param(Block(0, "memory", 1), "it is on no NUMA node", id="no node"),
        ],
    )
    def test_impossible_memory_is_dropped(self, idle, block, reason):
        state = MemoryState(policy="Static", machine_state=idle.nodes, entries={"a": {"app": (block,)}})

        checked = check_file(MEM, state_files.dump_memory_state(state, gates=NO_GATES), config())

        assert [
            finding.summary
            for finding in by_severity(Severity.ERROR, checked.findings)
            if finding.summary.endswith(reason)
        ]
        assert repaired_memory(checked).entries == {}

    def test_a_node_split_from_its_group_is_dropped(self, idle):
        text = memory(idle, a=(Block(0b11, "memory", GIB),), b=(Block(0b1, "memory", GIB),))

        checked = check_file(MEM, text, config())

        (warning,) = by_severity(Severity.WARNING, checked.findings)
        assert warning.summary == (
            "pod b container app holds 1Gi of memory on NUMA node 0: other pods hold NUMA nodes 0-1 as a group; "
            "a kubelet may or may not start on that"
        )
        assert set(repaired_memory(checked).entries) == {"a"}

    @pytest.mark.parametrize(
        ("change", "summary"),
        [
            pytest.param(lambda nodes: {}, "memory is allocated, but the file has no machine state", id="no machine"),
            pytest.param(lambda nodes: {0: nodes[0]}, "NUMA nodes 1 are new", id="a node is new"),
            pytest.param(lambda nodes: {**nodes, 2: nodes[1]}, "NUMA nodes 2 no longer exist", id="a node is gone"),
            pytest.param(
                lambda nodes: {**nodes, 0: nodes[0]._replace(assignments=7)},
                "the allocations do not match the free memory in the file",
                id="wrong counts",
            ),
            pytest.param(
                lambda nodes: {**nodes, 0: nodes[0]._replace(tables={})}, "NUMA node 0: memory is new", id="a new type"
            ),
            pytest.param(
                lambda nodes: {
                    **nodes,
                    1: nodes[1]._replace(tables={"memory": nodes[1].tables["memory"]._replace(total=8 * GIB)}),
                },
                "NUMA node 1: 8Gi of memory when the file was written, now 16Gi",
                id="more memory",
            ),
            pytest.param(
                lambda nodes: {
                    **nodes,
                    1: nodes[1]._replace(tables={"memory": nodes[1].tables["memory"]._replace(allocatable=GIB)}),
                },
                "NUMA node 1: 1Gi of memory was allocatable when the file was written, now 16Gi",
                id="huge pages since",
            ),
        ],
    )
    def test_changes_of_the_machine_are_reported(self, idle, change, summary):
        held = (Block(0b1, "memory", GIB),)
        ledger = idle.give("a", "app", blocks=held)

        checked = check_file(MEM, memory(idle, nodes=change(dict(ledger.nodes)), a=held), config())

        assert summary in [finding.summary for finding in by_severity(Severity.ERROR, checked.findings)]
        assert repaired_memory(checked).entries == {"a": {"app": held}}

    def test_policy_none_drops_all_memory(self, idle):
        text = memory(idle, a=(Block(0b1, "memory", GIB),))

        checked = check_file(MEM, text, config(memoryManagerPolicy="None"))

        assert checked.repairs[0].after == state_files.dump_memory_state(MemoryState(policy="None"), gates=NO_GATES)

    def test_pod_level_memory_is_counted_once(self, idle):
        on = config(**POD_LEVEL)
        whole, part = (Block(0b1, "memory", 2 * GIB),), (Block(0b1, "memory", GIB),)
        ledger = idle.give_pod("a", whole, containers={"app": part, "side": part})
        state = MemoryState(
            policy="Static",
            machine_state=idle.nodes,
            entries=ledger.held,
            pod_entries={**ledger.pod_held, "b": whole},
        )

        checked = check_file(MEM, state_files.dump_memory_state(state, gates=on.gates), on)

        after = repaired_memory(checked, on.gates)
        assert (after.pod_entries, after.machine_state) == ({"a": whole}, ledger.nodes)
        assert "dropped: pod b, 2Gi of memory on NUMA node 0" in checked.repairs[0].done


LATE_PLUGIN_NOTE = (
    "pods hold devices of x/gpu; a defect of the kubelet: when it restarts, it admits pods again whose containers do "
    "not run yet, and rejects those whose device plugin has not registered by then"
)


class TestDevices:
    """``kubelet_internal_checkpoint``, which a kubelet can start without."""

    ENTRY = DeviceEntry(uid="a", container="app", resource="x/gpu", devices={0: ("g0",)}, response=b"\x0a")
    STATE = DeviceState(
        entries=(ENTRY, replace(ENTRY, uid="b", devices={1: ("g1",)})), registered={"x/gpu": ("g0", "g1")}
    )

    def test_a_file_with_a_wrong_checksum_keeps_its_entries(self):
        text = state_files.dump_device_state(self.STATE)

        checked = check_file(DEVICE_PATH, text.replace(b'"Checksum":', b'"Checksum":1'), config())

        (warning,) = by_severity(Severity.WARNING, checked.findings)
        assert warning.summary.endswith(
            "the kubelet starts without the file and forgets which container holds which devices"
        )
        assert checked.repairs[0].after == text
        assert checked.repairs[0].done == (
            "restored from its readable part (unchecked)",
            "kept: the devices of pod a, pod b",
        )

    def test_of_two_pods_the_running_one_keeps_its_device(self):
        twice = replace(self.STATE, entries=(*self.STATE.entries, replace(self.ENTRY, uid="c")))

        checked = check_file(DEVICE_PATH, state_files.dump_device_state(twice), config(), c="ml/train")

        (warning,) = by_severity(Severity.WARNING, checked.findings)
        assert warning.summary == "pod a container app holds x/gpu g0: pod ml/train holds it too"
        assert [
            finding.uid for finding in state_files.parse_device_state(checked.repairs[0].after, path="").entries
        ] == [
            "b",
            "c",
        ]

    def test_init_containers_may_share_devices(self):
        shared = replace(self.STATE, entries=(self.ENTRY, replace(self.ENTRY, container="init")))

        checked = check_file(DEVICE_PATH, state_files.dump_device_state(shared), config())

        assert not checked.repairs
        assert [finding.summary for finding in about(checked, DEVICE_PATH)] == [
            "devices held by 1 pod",
            LATE_PLUGIN_NOTE,
        ]
        assert about(checked, DEVICE_PATH)[1].advice == (
            "before a restart or a reboot, taint the node until its device plugins have registered; "
            "registerWithTaints does not do that: the kubelet taints only a Node object that it creates"
        )

    def test_unhealthy_devices_are_noted(self):
        checked = check_file(
            DEVICE_PATH, state_files.dump_device_state(replace(self.STATE, registered={"x/gpu": ("g0",)})), config()
        )

        assert [finding.summary for finding in by_severity(Severity.NOTE, checked.findings)] == [
            "pod b container app holds x/gpu g1, which was not among the healthy devices",
            LATE_PLUGIN_NOTE,
        ]

    def test_more_devices_than_the_machine_has_are_noted(self):
        on = replace(config(), devices=(Device("x/gpu", "0", nodes=1),))

        checked = check_file(DEVICE_PATH, state_files.dump_device_state(self.STATE), on)

        assert [finding.summary for finding in by_severity(Severity.NOTE, checked.findings)] == [
            "2 devices of x/gpu are held, but the machine has 1",
            LATE_PLUGIN_NOTE,
        ]

    def test_incomplete_entries_are_dropped(self):
        incomplete = replace(self.STATE, entries=(replace(self.ENTRY, uid=""), replace(self.ENTRY, devices={})))

        checked = check_file(DEVICE_PATH, state_files.dump_device_state(incomplete), config())

        assert not state_files.parse_device_state(checked.repairs[0].after, path="").entries

    def test_a_truncated_file_keeps_its_complete_entries(self):
        text = state_files.dump_device_state(self.STATE)

        checked = check_file(DEVICE_PATH, text[: text.index(b'"g1"')], config())

        assert by_severity(Severity.WARNING, checked.findings)[0].summary.startswith("the file is cut off after ")
        assert state_files.parse_device_state(checked.repairs[0].after, path="").entries == (self.ENTRY,)


def test_missing_unreadable_and_leftover_files():
    files = StateFiles(unread={MEM: "cannot read it: Permission denied"}, leftovers=(".cpu_manager_state123",))

    checked = check_state(files, config())

    assert [(finding.severity, finding.where) for finding in checked.findings] == [
        (Severity.OK, CPU),
        (Severity.WARNING, MEM),
        (Severity.OK, DEVICE_PATH),
        (Severity.NOTE, ".cpu_manager_state123"),
    ]

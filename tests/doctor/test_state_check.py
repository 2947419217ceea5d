"""State files looked into: all that is wrong is named, and what is written in their place a kubelet starts on."""

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
from alignup.doctor import Finding, ManagerConfig, Severity, StateCheck, StateFiles, check_state
from alignup.doctor.state_check import DEVICE_STATE
from alignup.state.kubelet import cpu_file, device_file, memory_file
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.memory_file import MemoryState
from tests.conformance import memory_cases
from tests.conformance.cpu_cases import gates_of, held_of, sets_of
from tests.doctor.clinic import GIB, MEMORY, STATIC, cases, examined, machine, of, refusal
from tests.vector_types import view_of

CPU, MEM = cpu_file.NAME, memory_file.NAME
NO_GATES = FeatureGates()
IN_ONE_PIECE: dict[str, Any] = {"featureGates": {"PodLevelResourceManagers": True}}


def basis(on: str = "pack:2 numa:1 core:4 pu:2", **fields: Any) -> ManagerConfig:
    return examined(machine(on), **{**STATIC, **MEMORY, **fields}).basis


def looked(name: str, data: bytes, on: ManagerConfig, **pods: str) -> StateCheck:
    return check_state(StateFiles(texts={name: data}, directory="DIR"), on, pods=pods)


def about(found: StateCheck, name: str) -> list[Finding]:
    return [one for one in found.findings if one.where == name]


def cpus(default: str, gates: FeatureGates = NO_GATES, policy: str = "static", **held: dict[str, str]) -> bytes:
    entries = {uid: {name: bits.parse(text) for name, text in own.items()} for uid, own in held.items()}
    return cpu_file.dump(CpuState(policy=policy, default=bits.parse(default), entries=entries), gates=gates)


def memory(idle: MemoryLedger, *, nodes: Any = None, **held: tuple[Block, ...]) -> bytes:
    """The file of containers called ``app`` with these blocks."""
    ledger = idle
    for uid, blocks in held.items():
        ledger = ledger.give(uid, "app", blocks=blocks)
    state = MemoryState(policy="Static", machine_state=ledger.nodes if nodes is None else nodes, entries=ledger.held)
    return memory_file.dump(state, gates=NO_GATES)


class TestVectors:
    """What a real kubelet refused, and what it took."""

    @pytest.mark.parametrize("name", ["cpu", "memory"])
    def test_every_damaged_file_is_named_and_what_replaces_it_is_taken(self, request, name):
        policies = {"cpu": "cpuManagerPolicy", "memory": "memoryManagerPolicy"}
        for case in cases(request, f"checkpoints/index-{name}.jsonl"):
            path = request.config.getoption("--vectors") / "checkpoints" / case["file"]
            gates = dict.fromkeys(case["gates"], True)
            on = basis(featureGates=gates, **{policies[name]: case["configured_policy"]})
            file = {"cpu": CPU, "memory": MEM}[name]

            found = check_state(StateFiles(texts={file: path.read_bytes()}, directory="<DIR>"), on)

            if case["error"] is not None:
                assert case["error"] in [one.said for one in of(Severity.ERROR, found.findings)], case
                assert all(one.advice for one in of(Severity.ERROR, found.findings)), case
            refused = refusal(file, path.read_bytes(), on)
            assert bool(of(Severity.ERROR, found.findings)) == bool(refused), (case, refused)
            if refused:
                (repair,) = found.repairs
                assert not refusal(file, repair.after, on), case
                assert not check_state(StateFiles(texts={file: repair.after}), on).repairs, case

    def test_assignments_of_cpus_a_kubelet_refuses_are_mended(self, request):
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

            found = looked(CPU, cpu_file.dump(state, gates=gates), on)

            errors = of(Severity.ERROR, found.findings)
            assert bool(errors) == bool(case["errors"]), case
            if errors:
                assert errors[0].said in case["errors"], case
                assert not refusal(CPU, found.repairs[0].after, on), case

    def test_memory_a_kubelet_refuses_is_mended(self, request):
        for case in cases(request, "memory_validate.jsonl.gz"):
            on = ManagerConfig(gates=NO_GATES, memory_policy="Static", memory=memory_cases.idle_of(case["machine"]))
            state = MemoryState(
                policy="Static",
                machine_state=memory_cases.state_of(case["machine_state"]),
                entries=memory_cases.held_of(case["assignments"]),
            )

            found = looked(MEM, memory_file.dump(state, gates=NO_GATES), on)

            errors = of(Severity.ERROR, found.findings)
            assert bool(errors) == ("ok" not in case["outcomes"]), case
            if errors:
                assert errors[0].said in case["outcomes"], case
            for repair in found.repairs:
                assert not refusal(MEM, repair.after, on), case


class TestCpus:
    """``cpu_manager_state`` on CPUs 0-15, of which 0-1 are reserved."""

    @pytest.mark.parametrize(
        ("text", "severity", "what", "kept"),
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
                "pod b container app holds CPU 15: pod a owns CPU 15 as well",
                {"a": {"app": bits.parse("14-15")}},
                id="CPUs with two owners",
            ),
            pytest.param(
                cpus("0-15", a={"app": "14-15"}),
                Severity.ERROR,
                "CPUs 14-15 shared and owned by a container at once",
                {"a": {"app": bits.parse("14-15")}},
                id="shared and owned",
            ),
            pytest.param(
                cpus("0-11", a={"app": "14-15"}),
                Severity.ERROR,
                "CPUs 12-13 neither shared nor owned: new, reserved before, or lost",
                {"a": {"app": bits.parse("14-15")}},
                id="CPUs that are new",
            ),
            pytest.param(
                cpus("0-17"),
                Severity.ERROR,
                "CPUs 16-17 shared, but the machine has none of that number, or it is switched off",
                {},
                id="shared CPUs that are gone",
            ),
            pytest.param(
                cpus("2-15"),
                Severity.ERROR,
                "CPUs 0-1 reserved, but not among the shared ones: others were reserved when the file was written, "
                "or strict-cpu-reservation was on",
                {},
                id="the reservation changed",
            ),
            pytest.param(
                cpus("", policy="none"),
                Severity.ERROR,
                'the file is of policy "none", "static" is configured; the kubelet does not start',
                {},
                id="another policy",
            ),
        ],
    )
    def test_what_does_not_belong_is_named_and_the_rest_kept(self, text, severity, what, kept):
        on = basis()

        found = looked(CPU, text, on)

        assert what in [one.what for one in of(severity, found.findings)]
        (repair,) = found.repairs
        state = cpu_file.parse(repair.after, configured_policy="static", gates=NO_GATES, path="")
        assert state.entries == kept
        assert state.default == bits.parse("0-15") & ~bits.union(v for own in kept.values() for v in own.values())

    def test_the_reservation_may_have_become_strict(self):
        on = basis(cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})

        found = looked(CPU, cpus("0-15"), on)

        assert about(found, CPU)[0].what.startswith("CPUs 0-1 reserved, but among the shared ones: strict-cpu-")
        assert not refusal(CPU, found.repairs[0].after, on)

    def test_all_cpus_owned_is_a_file_no_kubelet_starts_on_and_the_smallest_pod_waits(self):
        on = basis(cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})

        found = looked(CPU, cpus("", a={"app": "2-9"}, b={"app": "10-11"}, c={"app": "12-15"}), on)

        (error,) = of(Severity.ERROR, found.findings)
        assert error.said == "default cpuset cannot be empty"
        assert error.what.startswith("pod b holds CPUs 10-11: no CPU would be left to be shared")
        assert "given up: pod b, CPUs 10-11" in found.repairs[0].done
        assert not refusal(CPU, found.repairs[0].after, on)

    def test_of_two_owners_the_pod_that_runs_keeps_its_cpus(self):
        found = looked(CPU, cpus("0-13", a={"app": "14-15"}, b={"app": "15"}), basis(), b="shop/web")

        assert found.repairs[0].done == (
            "taken from its contents",
            "kept: the CPUs of pod shop/web",
            "given up: pod a container app, CPUs 14-15",
        )
        assert "held by a, not among the pods given" in of(Severity.NOTE, found.findings)[0].what

    def test_under_policy_none_nobody_owns_cpus_any_more(self):
        on = basis(cpuManagerPolicy="none")

        found = looked(CPU, cpus("0-13", a={"app": "14-15"}), on)

        (error,) = of(Severity.ERROR, found.findings)
        assert error.what.startswith('the file is of policy "static", "none" is configured')
        assert found.repairs[0].after == cpu_file.dump(CpuState(policy="none"), gates=NO_GATES)
        assert found.repairs[0].done[1] == "given up: pod a container app, CPUs 14-15"

    def test_a_list_that_cannot_be_read_is_given_up(self):
        contents = {"policyName": "static", "defaultCpuSet": "0-13", "entries": {"a": {"app": "3-1", "x": "14-15"}}}

        found = looked(CPU, json.dumps(contents).encode(), basis())

        assert of(Severity.ERROR, found.findings)[-1].what == (
            'pod a container app holds CPUs "3-1": the list cannot be read (invalid range "3-1" (3 > 1))'
        )
        assert cpu_file.parse(found.repairs[0].after, configured_policy="static", gates=NO_GATES, path="").entries == {
            "a": {"x": bits.parse("14-15")}
        }

    def test_an_older_version_is_no_trouble(self):
        contents = {"policyName": "static", "defaultCpuSet": "0-15"}

        found = looked(CPU, json.dumps(contents).encode(), basis())

        assert not found.repairs
        assert [one.what for one in of(Severity.NOTE, found.findings)] == [
            "version 2, of an older kubelet: it is read, and written as version 4 from then on"
        ]

    def test_a_copy_that_was_changed_is_written_anew(self):
        text = cpus("0-15")
        other = text.replace(b'"defaultCpuSet":"0-15"', b'"defaultCpuSet":"0-14"', 1)

        found = looked(CPU, other, basis())

        (warning,) = of(Severity.WARNING, found.findings)
        assert warning.what.startswith("the copy for older kubelets differs from the contents; this kubelet does not")
        assert found.repairs[0].after == text

    def test_an_empty_file_loses_who_held_what_and_that_is_said(self):
        found = looked(CPU, b"", basis())

        assert found.repairs[0].done[0] == "taken from nothing: an empty state"
        assert found.repairs[0].done[1].startswith("who holds which CPUs is lost; a kubelet that starts gives it some")

    def test_nothing_is_repaired_while_the_configuration_is_wrong(self):
        on = basis(reservedSystemCPUs="0-99")

        found = looked(CPU, b"{", on)

        assert not found.repairs
        assert of(Severity.ERROR, found.findings)[0].advice.startswith("put the configuration right first")

    def test_pods_in_one_piece_keep_everything_or_nothing(self):
        on = basis(**IN_ONE_PIECE)
        state = CpuState(
            policy="static",
            default=bits.parse("0-5"),
            entries={"a": {"app": bits.parse("6-7")}, "b": {"app": bits.parse("10")}},
            pod_entries={"a": bits.parse("6-9"), "b": bits.parse("10-17"), "c": bits.parse("11-15")},
        )

        found = looked(CPU, cpu_file.dump(state, gates=on.gates), on)

        after = cpu_file.parse(found.repairs[0].after, configured_policy="static", gates=on.gates, path="")
        assert after.pod_entries == {"a": bits.parse("6-9")}
        assert after.entries == {"a": {"app": bits.parse("6-7")}}
        assert "given up: pod c, CPUs 11-15" in found.repairs[0].done

    def test_what_containers_owned_before_a_resize_is_kept_where_it_makes_sense(self):
        on = basis(featureGates={"InPlacePodVerticalScalingExclusiveCPUs": True})
        held = {"a": {"app": bits.parse("4-7")}, "b": {"app": bits.parse("8-9")}}
        before = {"a": {"app": bits.parse("4-5")}, "b": {"app": bits.parse("99")}}
        state = CpuState(policy="static", default=bits.parse("0-3,10-14"), entries=held, baselines=before)

        found = looked(CPU, cpu_file.dump(state, gates=on.gates), on)

        after = cpu_file.parse(found.repairs[0].after, configured_policy="static", gates=on.gates, path="")
        assert after.baselines == {"a": {"app": bits.parse("4-5")}, "b": {"app": bits.parse("8-9")}}


class TestMemory:
    """``memory_manager_state`` on two nodes of 16 GiB, of which one is reserved on node 0."""

    @pytest.fixture
    def idle(self):
        found = basis().memory
        assert found
        return found

    def after(self, found: StateCheck) -> MemoryState:
        (repair,) = found.repairs
        return memory_file.parse(repair.after, configured_policy="Static", gates=NO_GATES, path="")

    def test_another_reservation_does_not_cost_anybody_their_memory(self, idle):
        text = memory(idle, a=(Block(0b11, "memory", 20 * GIB),))
        on = basis(systemReserved={"memory": "1948Mi"}, reservedMemory=[{"numaNode": 1, "limits": {"memory": "2Gi"}}])

        found = looked(MEM, text, on)

        assert [(one.what, one.said) for one in of(Severity.ERROR, found.findings)] == [
            (
                "NUMA node 0: 1Gi of memory was reserved when the file was written, now 0",
                "[memorymanager] the expected machine state is different from the real one",
            ),
            ("NUMA node 1: 0 of memory was reserved when the file was written, now 2Gi", ""),
        ]
        assert self.after(found).entries == {"a": {"app": (Block(0b11, "memory", 20 * GIB),)}}
        assert not refusal(MEM, found.repairs[0].after, on)

    def test_who_does_not_fit_any_more_gives_it_up(self, idle):
        text = memory(idle, a=(Block(0b1, "memory", 15 * GIB),), b=(Block(0b10, "memory", 16 * GIB),))
        on = basis(systemReserved={"memory": "1948Mi"}, reservedMemory=[{"numaNode": 1, "limits": {"memory": "2Gi"}}])

        found = looked(MEM, text, on)

        assert of(Severity.ERROR, found.findings)[-1].what == (
            "pod b container app holds 16Gi of memory on NUMA node 1: only 14Gi of memory is left on NUMA node 1"
        )
        assert set(self.after(found).entries) == {"a"}

    @pytest.mark.parametrize(
        ("block", "why"),
        [
            pytest.param(Block(0b100, "memory", 1), "the machine has no NUMA node 2", id="a node that is gone"),
            pytest.param(
                Block(0b1, "hugepages-1Gi", 0), "there is no hugepages-1Gi on NUMA node 0 any more", id="type"
            ),
            pytest.param(Block(0, "memory", 1), "it is on no NUMA node", id="no node"),
        ],
    )
    def test_memory_nobody_can_hold_is_named(self, idle, block, why):
        state = MemoryState(policy="Static", machine_state=idle.nodes, entries={"a": {"app": (block,)}})

        found = looked(MEM, memory_file.dump(state, gates=NO_GATES), basis())

        assert [one.what for one in of(Severity.ERROR, found.findings) if one.what.endswith(why)]
        assert self.after(found).entries == {}

    def test_a_node_split_from_its_group_is_left_to_chance_by_the_kubelet_and_not_here(self, idle):
        text = memory(idle, a=(Block(0b11, "memory", GIB),), b=(Block(0b1, "memory", GIB),))

        found = looked(MEM, text, basis())

        (warning,) = of(Severity.WARNING, found.findings)
        assert warning.what == (
            "pod b container app holds 1Gi of memory on NUMA node 0: others hold NUMA nodes 0-1 as a group; "
            "a kubelet starts on that, or not, as it happens"
        )
        assert set(self.after(found).entries) == {"a"}

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            pytest.param(lambda nodes: {}, "memory is held, but there is nothing about the machine", id="no machine"),
            pytest.param(lambda nodes: {0: nodes[0]}, "NUMA nodes 1 are new", id="a node is new"),
            pytest.param(
                lambda nodes: {**nodes, 2: nodes[1]}, "NUMA nodes 2 do not exist any more", id="a node is gone"
            ),
            pytest.param(
                lambda nodes: {**nodes, 0: nodes[0]._replace(assignments=7)},
                "what is held does not add up to what the file says is free",
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
                "NUMA node 1: it had 8Gi of memory when the file was written, now 16Gi",
                id="more memory",
            ),
            pytest.param(
                lambda nodes: {
                    **nodes,
                    1: nodes[1]._replace(tables={"memory": nodes[1].tables["memory"]._replace(allocatable=GIB)}),
                },
                "NUMA node 1: 1Gi of memory could be given out when the file was written, now 16Gi",
                id="huge pages since",
            ),
        ],
    )
    def test_what_changed_on_the_machine_is_said(self, idle, change, what):
        held = (Block(0b1, "memory", GIB),)
        ledger = idle.give("a", "app", blocks=held)

        found = looked(MEM, memory(idle, nodes=change(dict(ledger.nodes)), a=held), basis())

        assert what in [one.what for one in of(Severity.ERROR, found.findings)]
        assert self.after(found).entries == {"a": {"app": held}}

    def test_under_policy_none_nobody_holds_memory_any_more(self, idle):
        text = memory(idle, a=(Block(0b1, "memory", GIB),))

        found = looked(MEM, text, basis(memoryManagerPolicy="None"))

        assert found.repairs[0].after == memory_file.dump(MemoryState(policy="None"), gates=NO_GATES)

    def test_pods_in_one_piece_are_counted_once(self, idle):
        on = basis(**IN_ONE_PIECE)
        whole, part = (Block(0b1, "memory", 2 * GIB),), (Block(0b1, "memory", GIB),)
        ledger = idle.give_pod("a", whole, containers={"app": part, "side": part})
        state = MemoryState(
            policy="Static",
            machine_state=idle.nodes,
            entries=ledger.held,
            pod_entries={**ledger.pod_held, "b": whole},
        )

        found = looked(MEM, memory_file.dump(state, gates=on.gates), on)

        after = memory_file.parse(found.repairs[0].after, configured_policy="Static", gates=on.gates, path="")
        assert (after.pod_entries, after.machine_state) == ({"a": whole}, ledger.nodes)
        assert "given up: pod b, 2Gi of memory on NUMA node 0" in found.repairs[0].done


class TestDevices:
    """``kubelet_internal_checkpoint``, without which a kubelet starts."""

    ENTRY = DeviceEntry(uid="a", container="app", resource="x/gpu", devices={0: ("g0",)}, response=b"\x0a")
    STATE = DeviceState(
        entries=(ENTRY, replace(ENTRY, uid="b", devices={1: ("g1",)})), registered={"x/gpu": ("g0", "g1")}
    )

    def test_a_file_with_a_wrong_checksum_is_taken_as_it_is(self):
        text = device_file.dump(self.STATE)

        found = looked(DEVICE_STATE, text.replace(b'"Checksum":', b'"Checksum":1'), basis())

        (warning,) = of(Severity.WARNING, found.findings)
        assert warning.what.endswith("the kubelet starts without it and forgets which container holds which devices")
        assert found.repairs[0].after == text
        assert found.repairs[0].done == (
            "taken from what can still be read of it, unchecked",
            "kept: the devices of pod a, pod b",
        )

    def test_a_device_of_two_pods_stays_with_the_one_that_runs(self):
        twice = replace(self.STATE, entries=(*self.STATE.entries, replace(self.ENTRY, uid="c")))

        found = looked(DEVICE_STATE, device_file.dump(twice), basis(), c="ml/train")

        (warning,) = of(Severity.WARNING, found.findings)
        assert warning.what == "pod a container app holds x/gpu g0: pod ml/train holds it as well"
        assert [one.uid for one in device_file.parse(found.repairs[0].after, path="").entries] == ["b", "c"]

    def test_init_containers_may_have_the_same_devices(self):
        shared = replace(self.STATE, entries=(self.ENTRY, replace(self.ENTRY, container="init")))

        found = looked(DEVICE_STATE, device_file.dump(shared), basis())

        assert not found.repairs
        assert [one.what for one in about(found, DEVICE_STATE)] == ["devices held by a pod"]

    def test_devices_that_were_not_healthy_are_worth_knowing(self):
        found = looked(DEVICE_STATE, device_file.dump(replace(self.STATE, registered={"x/gpu": ("g0",)})), basis())

        assert [one.what for one in of(Severity.NOTE, found.findings)] == [
            "pod b container app holds x/gpu g1, which was not among the healthy devices"
        ]

    def test_more_devices_held_than_there_are_is_worth_knowing(self):
        on = replace(basis(), devices=(Device("x/gpu", "0", nodes=1),))

        found = looked(DEVICE_STATE, device_file.dump(self.STATE), on)

        assert [one.what for one in of(Severity.NOTE, found.findings)] == [
            "2 devices of x/gpu are held, and the machine has 1"
        ]

    def test_entries_of_nobody_are_given_up(self):
        nobodys = replace(self.STATE, entries=(replace(self.ENTRY, uid=""), replace(self.ENTRY, devices={})))

        found = looked(DEVICE_STATE, device_file.dump(nobodys), basis())

        assert not device_file.parse(found.repairs[0].after, path="").entries

    def test_a_file_that_is_cut_off_keeps_what_is_whole(self):
        text = device_file.dump(self.STATE)

        found = looked(DEVICE_STATE, text[: text.index(b'"g1"')], basis())

        assert of(Severity.WARNING, found.findings)[0].what.startswith("the file is cut off after ")
        assert device_file.parse(found.repairs[0].after, path="").entries == (self.ENTRY,)


def test_files_that_are_not_there_or_cannot_be_read_or_are_left_over():
    files = StateFiles(unread={MEM: "cannot read it: Permission denied"}, leftovers=(".cpu_manager_state123",))

    found = check_state(files, basis())

    assert [(one.severity, one.where) for one in found.findings] == [
        (Severity.OK, CPU),
        (Severity.WARNING, MEM),
        (Severity.OK, DEVICE_STATE),
        (Severity.NOTE, ".cpu_manager_state123"),
    ]

"""Damage the files of any host: a kubelet starts on the repaired ones, and no pod gets what it did not hold."""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.provider import CpuProvider
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates
from alignup.doctor.configuration import ManagerConfig
from alignup.doctor.findings import Severity
from alignup.doctor.state_check import StateFiles, check_state
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.ledger import export_ledger
from alignup.kubernetes.kubelet_files.state_files import DEVICE_PATH
from tests.align.hosts import admit, hosts
from tests.doctor.helpers import by_severity, kubelet_error
from tests.effort import examples
from tests.kubernetes.kubelet_files.test_ledger import new_pods

CPU, MEM = state_files.CPU_FILE, state_files.MEMORY_FILE
Draw = Callable[[st.SearchStrategy[Any]], Any]
PARSERS: dict[str, Any] = {CPU: state_files.parse_cpu_state, MEM: state_files.parse_memory_state}


def config_of(original: Host) -> ManagerConfig:
    """What the state files of a kubelet with the host's settings are checked against."""
    host_settings, gates = original.settings, original.settings.gates
    provider = CpuProvider.create(
        original.view, host_settings.cpus, topology=host_settings.topology.policy, gates=gates, kubelet_faults=True
    )
    memory = next(provider for provider in original.providers if provider.name == "memory")
    return ManagerConfig(
        gates=gates,
        cpu_policy=host_settings.cpus.policy,
        memory_policy=host_settings.memory_policy,
        cpus=provider,
        memory=memory.initial_ledger(),
        pod_level=gates.on("PodLevelResourceManagers") and gates.on("PodLevelResources"),
    )


def files_of(original: Host) -> dict[str, bytes]:
    states, gates = export_ledger(original), original.settings.gates
    assert states.cpu
    assert states.memory
    assert states.devices
    return {
        CPU: state_files.dump_cpu_state(states.cpu, gates=gates),
        MEM: state_files.dump_memory_state(states.memory, gates=gates),
        DEVICE_PATH: state_files.dump_device_state(states.devices),
    }


def busy(original: Host, data: st.DataObject) -> Host:
    for number in range(data.draw(st.integers(0, 4))):
        admit(original, data.draw(new_pods(original, f"u{number}")))
    return original


def flipped(draw: Draw, text: bytes) -> bytes:
    at, bit = draw(st.integers(0, len(text) - 1)), draw(st.integers(0, 7))
    return text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]


def cut(draw: Draw, text: bytes) -> bytes:
    end: int = draw(st.integers(0, len(text)))
    return text[:end]


def swapped(draw: Draw, text: bytes) -> bytes:
    """Two parts swapped."""
    first, second, third, fourth = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 4)))
    return text[:first] + text[third:fourth] + text[second:third] + text[first:second] + text[fourth:]


def zeroed(draw: Draw, text: bytes) -> bytes:
    ends: list[int] = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[: ends[0]] + b"\0" * (ends[1] - ends[0]) + text[ends[1] :]


DAMAGES = (flipped, cut, swapped, zeroed)


def held_in(name: str, text: bytes, gates: FeatureGates) -> Mapping[str, Mapping[str, Any]]:
    """Pod → container → what it holds, in a valid file."""
    if name == DEVICE_PATH:
        held: dict[str, dict[str, Any]] = {}
        for entry in state_files.parse_device_state(text, path="").entries:
            held.setdefault(entry.uid, {})[f"{entry.container}/{entry.resource}"] = entry.devices
        return held
    state = PARSERS[name](text, configured_policy=None, gates=gates, path="")
    entries: Mapping[str, Mapping[str, Any]] = state.entries
    return entries


def check_owners(text: bytes, gates: FeatureGates) -> None:
    """No CPU belongs to two pods, and no exclusive one is shared."""
    state = state_files.parse_cpu_state(text, configured_policy=None, gates=gates, path="")
    owners = [
        bits.union([*state.entries.get(uid, {}).values(), state.pod_entries.get(uid, 0)])
        for uid in {*state.entries, *state.pod_entries}
    ]
    assert sum(cpus.bit_count() for cpus in owners) == bits.union(owners).bit_count()
    assert not state.default & bits.union(owners)


@settings(max_examples=examples(50))
@given(hosts(), st.data())
def test_a_single_damage_never_changes_what_a_pod_holds(original, data):
    """After one damage the repaired file has only what the original had, thanks to the checksums."""
    original, gates = busy(original, data), original.settings.gates
    on, files = config_of(original), files_of(original)
    assume(not kubelet_error(CPU, files[CPU], on))  # no shared CPU left: a fault of the kubelet
    whole = check_state(StateFiles(texts=files), on)
    assert not by_severity(Severity.ERROR, whole.findings)
    assert not by_severity(Severity.WARNING, whole.findings)
    name = data.draw(st.sampled_from(sorted(files)))
    damaged = data.draw(st.sampled_from((flipped, cut)))(data.draw, files[name])

    checked = check_state(StateFiles(texts={**files, name: damaged}), on)

    rejected = kubelet_error(name, damaged, on) if name != DEVICE_PATH else ""
    assert bool(by_severity(Severity.ERROR, checked.findings)) == bool(rejected)
    for repair in checked.repairs:
        assert not kubelet_error(name, repair.after, on)
        if name == CPU:
            check_owners(repair.after, gates)
        before, after = held_in(name, files[name], gates), held_in(name, repair.after, gates)
        if name != DEVICE_PATH:  # which has a single checksum, so damage may go unnoticed
            assert all(after[uid][key] == before[uid][key] for uid in after for key in after[uid])


@settings(max_examples=examples(50))
@given(hosts(), st.data())
def test_a_kubelet_starts_on_any_repaired_file(original, data):
    original, gates = busy(original, data), original.settings.gates
    on, files = config_of(original), files_of(original)
    for name in files:
        for damage in data.draw(st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=3)):
            files[name] = damage(data.draw, files[name]) if files[name] else b""

    checked = check_state(StateFiles(texts=files), on)

    repaired = files | {repair.name: repair.after for repair in checked.repairs}
    assert not kubelet_error(CPU, repaired[CPU], on)
    assert not kubelet_error(MEM, repaired[MEM], on)
    state_files.parse_device_state(repaired[DEVICE_PATH], path="")
    check_owners(repaired[CPU], gates)
    assert not check_state(StateFiles(texts=repaired), on).repairs


@settings(max_examples=examples(50))
@given(hosts(), hosts(), st.data())
def test_files_of_another_host_are_adapted(original, other, data):
    """On another machine, with another reservation and policy, everything possible is kept."""
    files, on = files_of(busy(original, data)), config_of(other)

    checked = check_state(StateFiles(texts=files), on)

    repaired = files | {repair.name: repair.after for repair in checked.repairs}
    assert not kubelet_error(CPU, repaired[CPU], on)
    assert not kubelet_error(MEM, repaired[MEM], on)
    check_owners(repaired[CPU], on.gates)
    if on.memory_policy == MemoryPolicy.STATIC == original.settings.memory_policy:
        before = held_in(MEM, files[MEM], on.gates)
        after = held_in(MEM, repaired[MEM], on.gates)
        assert all(after[uid][name] == before[uid][name] for uid in after for name in after[uid])

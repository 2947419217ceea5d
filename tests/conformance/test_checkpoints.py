"""State files of the CPU and the memory manager: read, rejected, hashed and written as the kubelet does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.errors import StateError
from alignup.align.memory.ledger import Block
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.go_json import decode
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FORMAT,
    MEMORY_FORMAT,
    StateFileFormat,
    data_checksum_text,
    dump_cpu_state,
    dump_memory_state,
    parse_cpu_state,
    parse_memory_state,
    struct_checksum_text,
)
from tests.conformance import memory_cases
from tests.conformance.cpu_cases import gates_of, held_of, sets_of
from tests.conformance.harness import OWN_VECTORS, Case, run_index, run_releases

#: A list of CPUs that cannot be parsed: the file is the kubelet's, but there is no state to write again.
UNREADABLE = {"bad-default-cpuset", "bad-container-cpuset"}


def test_state_files_of_cpus_are_read_and_written_as_the_kubelet_does(request):
    run_index(request, "checkpoints/index-cpu", check_cpu)


def test_state_files_of_memory_are_read_and_written_as_the_kubelet_does(request):
    run_index(request, "checkpoints/index-memory", check_memory)


def test_kubelets_of_other_releases_read_and_rewrite_the_files_of_cpus(request):
    run_reads(request, "checkpoint_reads_cpu", parse_cpu_state, dump_cpu_state)


def test_kubelets_of_other_releases_read_and_rewrite_the_files_of_memory(request):
    run_reads(request, "checkpoint_reads_memory", parse_memory_state, dump_memory_state)


def run_reads(request: pytest.FixtureRequest, file: str, parse: Callable[..., Any], dump: Callable[..., bytes]) -> None:
    """What each release makes of the files: rejects them in these words, or writes them back.

    A set that has only answers of other releases answers for our own files.
    """
    folders = [vectors / "checkpoints" for vectors in (request.config.getoption("--vectors"), OWN_VECTORS)]

    def check(case: Case) -> None:
        text = next(folder / case["file"] for folder in folders if (folder / case["file"]).exists()).read_bytes()
        unknown = case.get("gates_unknown_here", ())
        gates = FeatureGates({name: True for name in case["gates"] if name not in unknown}, case["release"])
        name = CPU_FORMAT.file_name if case["manager"] == "cpu" else MEMORY_FORMAT.file_name
        try:
            state = parse(text, configured_policy=case["configured_policy"], gates=gates, path=f"<DIR>/{name}")
        except StateError as error:
            assert str(error) == case["error"]
            return
        assert case["error"] is None, f"accepted instead of {case['error']!r}"
        assert dump(state, gates=gates).decode() == case["rewritten"]

    run_releases(request, file, check)


def check_cpu(case: Case, folder: Path) -> None:
    state = restored(CPU_FORMAT, parse_cpu_state, dump_cpu_state, case=case, folder=folder)
    if state is not None:
        assert bits.show(state.default) == case.get("default", "")
        assert state.entries == held_of(case.get("assignments"))
        assert state.pod_entries == sets_of(case.get("pod_assignments"))
        assert state.baselines == held_of(case.get("baselines"))


def check_memory(case: Case, folder: Path) -> None:
    """Blocks stand in the file as it came, in the vectors by type."""
    state = restored(MEMORY_FORMAT, parse_memory_state, dump_memory_state, case=case, folder=folder)
    if state is not None:
        held = {
            uid: {name: by_type(blocks) for name, blocks in containers.items()}
            for uid, containers in state.entries.items()
        }
        pods = case.get("pod_assignments") or {}
        assert state.machine_state == memory_cases.state_of(case.get("machine_state") or {})
        assert held == memory_cases.held_of(case.get("assignments") or {})
        assert {uid: by_type(blocks) for uid, blocks in state.pod_entries.items()} == {
            uid: memory_cases.blocks_of(blocks) for uid, blocks in pods.items()
        }


def by_type(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(sorted(blocks, key=lambda block: block.type))


def checksum_texts(format_: StateFileFormat, text: bytes) -> tuple[str, str]:
    """Return the texts of the two checksums in a file of the newest version: of the copy, and of the data."""
    whole, _ = decode(format_.newest, text, into=format_.newest.empty)
    copy = struct_checksum_text(format_.older[-1].struct, whole, name=format_.name)
    return copy, data_checksum_text(whole["data"])


def restored(
    format_: StateFileFormat, parse: Callable[..., Any], dump: Callable[..., bytes], *, case: Case, folder: Path
) -> Any:
    """What the file says; nothing when it is rejected, which must be in the words expected."""
    text = (folder / case["file"]).read_bytes()
    gates = gates_of(case["gates"], case["release"])
    path = f"<DIR>/{format_.file_name}"
    if case["written_by_kubelet"]:
        legacy, data = checksum_texts(format_, text)
        assert legacy == case.get("legacy_dump", legacy)
        assert data == case.get("data_dump", data)
        if case["kind"] not in UNREADABLE:
            state = parse(text, configured_policy=None, gates=gates, path=path)
            assert dump(state, gates=gates) == text
    if case["error"] is None:
        return parse(text, configured_policy=case["configured_policy"], gates=gates, path=path)

    with pytest.raises(StateError) as rejected:
        parse(text, configured_policy=case["configured_policy"], gates=gates, path=path)

    assert str(rejected.value) == case["error"]
    return None

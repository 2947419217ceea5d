import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alignup.align.errors import WorkLimitError
from alignup.align.host import Host
from alignup.simulate.arrivals import arrivals
from alignup.simulate.compare import build_grid, columns, compare, rows, to_document
from alignup.simulate.executors import ProcessPool, SerialExecutor
from alignup.simulate.generate import Profile, generate
from alignup.simulate.node_simulation import run
from alignup.simulate.node_report import write_rows
from tests.align.hosts import GPU, NIC, host
from tests.simulate.workloads import small

ONE = host()
MACHINE, BASE = ONE.machine, ONE.settings
#: Managed memory prefers one node, so policy restricted allows CPUs of two nodes only without it.
UNMANAGED = host(memory=False).settings
#: No node has 5 CPUs.
EVENTS = arrivals([small("a", cpu="5"), small("b", cpu="1"), small("c", cpu="2")])


def compared(*dimensions: str, events=EVENTS, **how):
    return compare(MACHINE, build_grid(BASE, dimensions, machine=MACHINE), events, **how)


def test_variants_are_ranked_by_admitted_and_aligned_pods():
    variants = build_grid(UNMANAGED, ["policy"], machine=MACHINE)

    found = compare(MACHINE, variants, arrivals([small("b", cpu="1"), small("a", cpu="5"), small("c", gpu="1")]))

    assert [(one.rank, one.variant.label, one.score.admitted, one.score.pods.on_one) for one in found.ranked] == [
        (1, "policy=single-numa-node", 2, 2),
        (2, "policy=none", 2, 1),
        (2, "policy=best-effort", 2, 1),
        (2, "policy=restricted", 2, 1),
    ]


def test_scores_agree_with_a_simulation():
    for one in compared("policy", "scope").ranked:
        result = run(Host(MACHINE, one.variant.settings), EVENTS)

        assert (one.score.admitted, one.score.reasons) == (result.admitted, result.reasons)
        assert one.score.stranded == result.peak.stranded


def test_fewer_stranded_devices_are_better():
    variants = build_grid(UNMANAGED, ["policy=single-numa-node|restricted"], machine=MACHINE)

    first, second = compare(MACHINE, variants, arrivals([small("a", cpu="5", gpu="2")])).ranked

    assert [first.variant.choices["policy"], second.variant.choices["policy"]] == ["restricted", "single-numa-node"]
    assert [first.score.stranded.devices[GPU], second.score.stranded.devices[GPU]] == [0, 2]


def test_equal_scores_share_a_rank_in_the_order_given():
    found = compared("cpu-options=full-pcpus-only|strict-cpu-reservation")

    assert [one.rank for one in found.ranked] == [1, 1, 1, 1]
    assert found.ranked[0].variant.choices["cpu-options"] == "none"


UNAVAILABLE = 'policy "BestEffort" is not available for platform "linux"'


def test_invalid_variants_are_listed():
    found = compared("memory-policy=None|BestEffort")

    assert [one.variant.label for one in found.ranked] == ["memory-policy=None"]
    assert [(one.label, one.error) for one in found.invalid] == [("memory-policy=BestEffort", UNAVAILABLE)]


def test_nothing_to_compare():
    found = compare(MACHINE, (), EVENTS)

    assert (found.ranked, found.invalid) == ((), ())


class TestExecutors:
    EVENTS = generate(Profile.MIXED, MACHINE, seed=3, pods=20, load=1.5)
    DIMENSIONS = ("policy", "scope", "memory-policy", "cpu-options=full-pcpus-only|align-by-socket")

    def test_processes(self):
        with ProcessPool(2) as executor:
            found = compared(*self.DIMENSIONS, events=self.EVENTS, executor=executor)

        assert found == compared(*self.DIMENSIONS, events=self.EVENTS)
        assert len(found.ranked) == 28
        assert len(found.invalid) == 28

    def test_threads(self):
        with ThreadPoolExecutor(2) as executor:
            found = compared("policy", "scope", events=self.EVENTS, executor=executor)

        assert found == compared("policy", "scope", events=self.EVENTS)


def test_progress_is_reported_per_variant():
    calls: list[tuple[int, int]] = []

    compared("policy", progress=lambda done, total: calls.append((done, total)), now=iter(range(99)).__next__)

    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


class Simulating(SerialExecutor):
    """Runs the jobs of a comparison with another function instead of ``simulate.run``."""

    def __init__(self, simulate):
        self.simulate = simulate

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return super().submit(job, *args, **kwargs, simulate=self.simulate)


def test_a_work_limit_under_one_variant_does_not_stop_the_others():
    def limited(one, events, **how):
        if one.settings.topology.policy == "restricted":
            raise WorkLimitError("too much work", sources=["cpu"])
        return run(one, events)

    found = compared("policy", executor=Simulating(limited))

    assert len(found.ranked) == 3
    assert [(one.label, one.error) for one in found.invalid] == [("policy=restricted", "too much work")]


def test_errors_of_jobs_are_raised():
    def broken(one, events, **how):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compared("policy", executor=Simulating(broken))


INTERRUPTED = """
import sys
from alignup.simulate.compare import build_grid, compare
from alignup.simulate.executors import ProcessPool, SerialExecutor
from alignup.simulate.generate import Profile, generate
from tests.align.hosts import host

def main():
    one = host()
    events = generate(Profile.MIXED, one.machine, seed=1, pods=300)
    variants = build_grid(one.settings, ("policy", "scope", "memory-policy", "cpu-options"), machine=one.machine)

    def progress(done, total):
        print(done, flush=True)

    with ProcessPool(2) as executor:
        compare(one.machine, variants, events, executor=executor, progress=progress)

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_an_interruption_ends_the_comparison(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(textwrap.dedent(INTERRUPTED), encoding="utf-8")
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()

    assert process.returncode == 130
    assert errors == b""


def test_a_table_and_a_document():
    found = compared("policy=single-numa-node", "memory-policy=None|BestEffort")
    text = io.StringIO()

    write_rows(columns(found), rows(found), text)

    figures = "admitted,rejected,one node,several nodes,anywhere,stranded cpus,stranded devices,reasons"
    assert text.getvalue().splitlines() == [
        f"rank,policy,memory-policy,{figures},error",
        f"1,single-numa-node,None,2,1,2,0,0,0,{GPU}=2 {NIC}=2,TopologyAffinityError=1,",
        ',single-numa-node,BestEffort,,,,,,,,,"policy ""BestEffort"" is not available for platform ""linux"""',
    ]
    document = to_document(found)
    assert json.loads(json.dumps(document)) == document
    assert document["ranked"][0]["choices"] == {"policy": "single-numa-node", "memory-policy": "None"}
    assert document["ranked"][0]["alignment"]["pods"]["onOne"] == 2
    assert document["illegal"] == [
        {
            "choices": {"policy": "single-numa-node", "memory-policy": "BestEffort"},
            "manager": "memory",
            "error": UNAVAILABLE,
        }
    ]


def test_the_base_settings_are_not_changed():
    lenient = replace(BASE, memory_policy="None", reserved_memory=())

    compare(MACHINE, build_grid(lenient, ["memory-policy"], machine=MACHINE), EVENTS)

    assert lenient.memory_policy == "None"

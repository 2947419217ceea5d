"""Recorded runs of a real kubelet, replayed through a host: ``--recorded DIR`` takes any set of them."""

import pytest

from tests.recorded.replay import RUNS, Run, load, replay


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


def test_a_host_decides_as_the_kubelet(request, recorded):
    run = Run(recorded.name.removesuffix(".json.gz"))
    request.config.stash[RUNS].append(run)

    replay(load(recorded), run)

    assert not run.failures, "\n".join(run.failures)

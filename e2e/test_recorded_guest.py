"""Replay recorded kubelet runs with an agent and containerd in a guest of the same shape.

With the same configuration, plugins, pods and steps, and real containers, the admission results, PodResources and
cgroups equal the kubelet's. ``ALIGNUP_RECORDED`` names a directory of other recordings.
"""
# ruff: noqa: S101

import os
from pathlib import Path

import pytest

from e2e import guest, recorded
from tests.recorded.replay import Run, load

FOLDER = Path(os.environ.get("ALIGNUP_RECORDED") or Path(__file__).parent.parent / "tests" / "recorded" / "kubelet")
WORDS = ("--runtime", "cri", "--allow", "host-network")
WHY = guest.missing_node()

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded.recordings(FOLDER)]
)
def test_an_agent_behaves_like_the_kubelet(request: pytest.FixtureRequest, path: Path, node_image: Path) -> None:
    recording = load(path)
    script = guest.call_script("e2e.guest_recorded", "play", recorded.scenario(recording), *WORDS)

    printed = guest.run(recorded.shape(recording), script, image=node_image)

    ours = guest.result_of(printed)
    run = Run(recording["scenario"])
    recorded.compare(recording, ours, run)
    request.config.stash[recorded.LINES].append(f"{run.line()}; {ours['seconds']:.0f} s")
    assert not run.failures, "\n".join([*run.failures, ours.get("log", "")[-3000:]])
    if "files" in ours:
        assert ours["code"] == 0, ours["log"]
        assert ours["runtime"]["strays"] == []
        if not run.apart:
            assert recorded.files(recording, ours["files"]) == []

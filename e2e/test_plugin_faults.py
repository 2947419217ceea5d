"""Long fault tests of an agent with device plugins: repeated kills of both, and a plugin that flaps.

``tests/agent/test_device_allocator.py`` has short versions.
"""

from pathlib import Path

from tests.agent.agents import running
from tests.agent.load import check_granted, check_nothing_twice, kill_plugins_too, memory_of
from tests.agent.plugin_rig import GPUS, wait_for_devices
from tests.deadlines import wait_for
from tests.effort import SEED
from tests.testing.processes import plugin_process

KILLS = 60
FLAPS = 100
TIMEOUT = 300.0  #: seconds


def test_agent_and_plugin_are_killed_60_times_under_load(tmp_path: Path) -> None:
    """After each kill, every acknowledged placement exists and no device has two owners; in the end, none is lost."""
    kill_plugins_too(tmp_path / "root", kills=KILLS, seed=SEED)


def test_a_plugin_that_flaps_a_hundred_times_is_harmless(tmp_path: Path) -> None:
    """Pods are admitted while it is registered, wait while it is not, and keep their devices."""
    root, script = tmp_path / "root", tmp_path / "script"
    script.write_text('{"after": 0.03, "do": "restart"}\n{"after": 0.03, "do": "register"}\n' * FLAPS)
    with running(root, "--on-misfit", "wait", devices="") as agent:
        with plugin_process(root / "device-plugins", *GPUS, "--preferred", "lowest", "--script", str(script)):
            wait_for_devices(agent)
            before = memory_of(agent)
            for number in range(4):
                assert agent.admit(f"pod-{number}", cpu="100m", gpu="1").status_code in {201, 202}
            wait_for(lambda: _flaps(agent.http.get("/metrics").text) > FLAPS, seconds=TIMEOUT)
            wait_for(lambda: all(pod["status"] == "admitted" for pod in agent.pods().values()), seconds=TIMEOUT)
            pods = agent.pods()
            check_nothing_twice(pods)
            check_granted(pods)
            assert memory_of(agent) - before < 20 << 20
        wait_for_devices(agent, 0)
        assert agent.pods() == pods
    with running(root, "--on-misfit", "wait", devices="") as agent:
        assert {uid: pod["grants"] for uid, pod in agent.pods().items()} == {
            uid: pod["grants"] for uid, pod in pods.items()
        }


def _flaps(metrics: str) -> int:
    """Return the number of registrations."""
    name = 'kubelet_device_plugin_registration_total{resource_name="example.com/gpu"}'
    return next((int(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name)), 0)

"""postStart and preStop hooks."""

import asyncio

import pytest

from alignup.agent.pods import probes
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError
from alignup.kubernetes.podspec.types import LifecycleHook
from alignup.run.cri.types import ExecResult

RUN = LifecycleHook(command=("run", "$(THIS)"))


async def fine(command: tuple[str, ...], seconds: float) -> ExecResult:
    assert command == ("run", "$(THIS)")
    return ExecResult(exit_code=0)


async def failing(command: tuple[str, ...], seconds: float) -> ExecResult:
    return ExecResult(exit_code=2, output=b"oh no\n")


async def away(command: tuple[str, ...], seconds: float) -> ExecResult:
    raise EnforceError("the runtime is away")


async def hanging(command: tuple[str, ...], seconds: float) -> ExecResult:
    await asyncio.Event().wait()
    pytest.fail("the hook did not time out")


def test_a_successful_post_start_hook():
    asyncio.run(probes.run_post_start(RUN, fine, container="app"))


@pytest.mark.parametrize(
    ("execute", "words"), [(failing, "exited with 2, message: 'oh no'"), (away, "error: the runtime is away")]
)
def test_a_failed_post_start_hook_fails_the_start(execute, words):
    with pytest.raises(PodStartError, match=words) as caught:
        asyncio.run(probes.run_post_start(RUN, execute, container="app"))

    assert caught.value.reason == "PostStartHookError"


@pytest.mark.parametrize(
    ("execute", "words"),
    [
        (fine, ""),
        (failing, "error: command exited with 2, message: 'oh no'"),
        (away, "error: the runtime is away"),
        (hanging, "PreStop hook not completed in grace period of 0.05 seconds"),
    ],
)
def test_a_failed_pre_stop_hook_does_not_prevent_the_stop(execute, words):
    assert asyncio.run(probes.run_pre_stop(RUN, execute, grace=0.05)) == words


def test_sleep_hooks():
    assert asyncio.run(probes.run_pre_stop(LifecycleHook(sleep=0), fine, grace=60)) == ""
    assert asyncio.run(probes.run_pre_stop(LifecycleHook(sleep=3600), fine, grace=0.05)).startswith(
        "PreStop hook not completed"
    )

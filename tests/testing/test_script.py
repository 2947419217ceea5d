"""Scripts: every line is checked before the first action runs."""

import json

import pytest

from alignup.align.errors import ParseError, PluginError
from alignup.testing import Plugin, script
from alignup.testing import plugin as plugin_main
from alignup.testing.plugin import ACTIONS

GPU = "example.com/gpu"


def test_the_documented_examples_are_valid_and_complete():
    lines = (line for module in (plugin_main, script) for line in (module.__doc__ or "").splitlines())
    example = "\n".join(line for line in lines if line.lstrip().startswith("{"))

    steps = script.parse(example, ACTIONS)

    assert {step.do for step in steps} == {"health", "remove", "devices", "fault", "register", "restart", "crash"}
    arguments = {"id": "gpu-0", "health": "Unhealthy"}
    assert steps[0] == script.ScriptStep(1.0, "health", ACTIONS["health"], arguments)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param("{", "Expecting", id="not JSON"),
        pytest.param([], "must be an object", id="not an object"),
        pytest.param({"do": "dance"}, "unknown action dance", id="an unknown action"),
        pytest.param({"do": "crash", "after": -1}, "number of seconds", id="a negative delay"),
        pytest.param({"do": "crash", "id": "gpu-0"}, "crash has no field id; it takes none", id="an unknown field"),
        pytest.param({"do": "remove"}, "remove needs id", id="a missing field"),
        pytest.param({"do": "remove", "id": 7}, "remove has an invalid id: 7", id="a number instead of a string"),
        pytest.param({"do": "devices", "devices": "x"}, "is not a device list", id="invalid devices"),
        pytest.param(
            {"do": "fault", "method": "Allocate", "hang": 1},
            "fault has an invalid hang: 1",
            id="a number instead of a boolean",
        ),
    ],
)
def test_errors_name_the_line(line, text):
    line = line if isinstance(line, str) else json.dumps(line)

    with pytest.raises(ParseError, match=r"^line 3 of the script: ") as caught:
        script.parse(f'{{"do": "crash"}}\n\n{line}', ACTIONS)

    assert text in str(caught.value)


@pytest.mark.anyio
async def test_actions_run(directory, manager, listener):
    async def do(**step):
        await script.play(script.parse(json.dumps(step), ACTIONS), plugin)

    async with Plugin(GPU, "3@0", directory=directory) as plugin:
        await listener.until(lambda: len(listener.healthy(GPU)) == 3)
        await do(do="health", id="gpu-0", health="Unhealthy")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-1", "gpu-2"])
        await do(do="remove", id="gpu-1")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-2"])
        await do(do="devices", devices="1@1")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-0"])
        await do(do="fault", method="Allocate", error="out of order", delay=0.01)
        with pytest.raises(PluginError, match="out of order"):
            await manager.allocate(GPU, ("gpu-0",))
        await do(do="fault", method="Allocate")
        await manager.allocate(GPU, ("gpu-0",))
        await do(do="restart")
        await listener.until(lambda: listener.events[-1] == ("stopped", GPU))
        await do(do="register")
        await listener.until(lambda: listener.healthy(GPU) == ["gpu-0"])

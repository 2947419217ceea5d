"""Scripts: every line is checked before the first thing is done."""

import json

import pytest

from alignup.align.errors import ParseError, PluginError
from alignup.testing import Plugin, script

GPU = "example.com/gpu"


def test_the_example_in_the_documentation_is_one():
    example = "\n".join(line for line in script.__doc__.splitlines() if line.lstrip().startswith("{"))

    steps = script.parse(example)

    assert {step.do for step in steps} == {"health", "remove", "devices", "fault", "register", "restart", "crash"}
    assert steps[0] == script.ScriptStep(1.0, "health", {"id": "gpu-0", "health": "Unhealthy"})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("{", "Expecting", id="no JSON"),
        pytest.param([], "is an object", id="no object"),
        pytest.param({"do": "dance"}, "no such thing to do: dance", id="something else"),
        pytest.param({"do": "crash", "after": -1}, "number of seconds", id="before its time"),
        pytest.param({"do": "crash", "id": "gpu-0"}, "crash is told nothing, not id: gpu-0", id="told too much"),
        pytest.param({"do": "remove"}, "remove has to be told id", id="told too little"),
        pytest.param({"do": "remove", "id": 7}, "not id: 7", id="told a number"),
        pytest.param({"do": "devices", "devices": "x"}, "is no count of devices", id="devices that are none"),
        pytest.param({"do": "fault", "method": "Allocate", "hang": 1}, "not hang: 1", id="a number for yes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line, says):
    text = line if isinstance(line, str) else json.dumps(line)

    with pytest.raises(ParseError, match=r"^line 3 of the script: ") as caught:
        script.parse(f'{{"do": "crash"}}\n\n{text}')

    assert says in str(caught.value)


@pytest.mark.anyio
async def test_what_is_said_is_done(directory, exchange, ears):
    async def do(**told):
        await script.play(script.parse(json.dumps(told)), plugin)

    async with Plugin(GPU, "3@0", directory=directory) as plugin:
        await ears.until(lambda: len(ears.healthy(GPU)) == 3)
        await do(do="health", id="gpu-0", health="Unhealthy")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-1", "gpu-2"])
        await do(do="remove", id="gpu-1")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-2"])
        await do(do="devices", devices="1@1")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-0"])
        await do(do="fault", method="Allocate", error="out of order", delay=0.01)
        with pytest.raises(PluginError, match="out of order"):
            await exchange.allocate(GPU, ("gpu-0",))
        await do(do="fault", method="Allocate")
        await exchange.allocate(GPU, ("gpu-0",))
        await do(do="restart")
        await ears.until(lambda: ears.heard[-1] == ("stopped", GPU))
        await do(do="register")
        await ears.until(lambda: ears.healthy(GPU) == ["gpu-0"])

"""CEL selectors of devices."""

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims.resource_claims import ClaimObjects, ClaimRequest, DeviceClass, DeviceId, SliceDevice
from alignup.align.quantity import Quantity
from alignup.kubernetes.manifests import device_selectors
from alignup.kubernetes.manifests.device_selectors import (
    FailingSelectorError,
    FileSelectors,
    LongSelectorError,
    SelectorError,
    relevant_values,
    select,
)
from tests.effort import bounded
from tests.schedule.claim_objects import ENDLESS_SELECTOR

GPU = SliceDevice(
    DeviceId("gpu.example.com", "node-a", "gpu-0"),
    {
        "gpu.example.com/model": "h100",
        "gpu.example.com/index": 3,
        "gpu.example.com/linked": True,
        "gpu.example.com/driverVersion": "1.10.0-rc.2",
        "resource.kubernetes.io/numaNode": 1,
    },
    frozenset({"gpu.example.com/driverVersion"}),
    {"gpu.example.com/memory": Quantity.parse("80Gi")},
)
MEMORY = 'device.capacity["gpu.example.com"].memory'
VERSION = 'device.attributes["gpu.example.com"].driverVersion'


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("true", True),
        ('device.driver == "gpu.example.com"', True),
        ('device.attributes["gpu.example.com"].model == "h100"', True),
        ('device.attributes["gpu.example.com"].model in ["a100", "l40"]', False),
        ('device.attributes["gpu.example.com"].index > 2 && device.attributes["gpu.example.com"].linked', True),
        ("device.attributes['resource.kubernetes.io'].numaNode == 1", True),
        ('"gpu.example.com" in device.attributes', True),
        ('has(device.attributes["other.example.com"].model)', False),
        ('device.attributes["gpu.example.com"].?size.orValue(7) == 7', True),
        ('cel.bind(own, device.attributes["gpu.example.com"], own.model.lowerAscii() == "h100")', True),
        (f'{MEMORY}.compareTo(quantity("40Gi")) >= 0', True),
        (f'{MEMORY}.isGreaterThan(quantity("81Gi"))', False),
        (f'{MEMORY}.isLessThan(quantity("100G"))', True),
        (f'{MEMORY} == quantity("80Gi")', True),
        (f"{MEMORY}.sign() == 1 && {MEMORY}.asInteger() == 85899345920", True),
        ('isQuantity("1Gi") && !isQuantity("one")', True),
        (f'{VERSION}.compareTo(semver("1.9.7")) > 0', True),
        (f'{VERSION}.isLessThan(semver("1.10.0"))', True),
        (f'{VERSION}.isGreaterThan(semver("1.10.0-rc.1"))', True),
        (f"{VERSION}.major() == 1 && {VERSION}.minor() == 10 && {VERSION}.patch() == 0", True),
        ("device.allowMultipleAllocations", False),
    ],
)
def test_an_expression_selects_a_device(expression, selected):
    assert select(expression, GPU) is selected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.driver ==", "is not valid: 1:17: Syntax error"),
        ("unknown()", "is not valid"),
        ('device.attributes["gpu.example.com"].size == 1', 'fails for device gpu.example.com/node-a/gpu-0: .*"size"'),
        ("1 + 1", "fails for device .*: 2"),
        (f'{MEMORY}.compareTo(quantity("much")) > 0', "fails for device"),
        (f'{VERSION}.compareTo(semver("1.2")) > 0', "is not a semantic version; write 1.2.3"),
        (ENDLESS_SELECTOR, "takes more than 10,000 steps, which only the scheduler computes"),
        ("device.driver == '\ud800'", "is not valid"),
    ],
)
def test_an_expression_that_does_not_say_is_an_error(expression, message):
    with pytest.raises(SelectorError, match=message):
        select(expression, GPU)


def test_the_selectors_of_the_class_count_as_well():
    classes = {"h100": DeviceClass("h100", ('device.attributes["gpu.example.com"].model == "h100"',))}
    matches = FileSelectors(ClaimObjects(classes))

    assert matches(ClaimRequest("gpu", "h100"), GPU)
    assert not matches(ClaimRequest("gpu", "h100", selectors=("false",)), GPU)
    assert not matches(ClaimRequest("gpu", "gone"), GPU)


def bind_bomb(levels):
    """A short selector that makes a string of ten to the power of *levels* characters."""
    text = f"v{levels}.size() > 0"
    for level in range(levels, 0, -1):
        text = f"cel.bind(v{level}, {' + '.join([f'v{level - 1}'] * 10)}, {text})"
    return f'cel.bind(v0, "x", {text})'


ITEMS = str(list(range(21)))
BOMBS = {
    "bind": bind_bomb(12),
    "replace": "'" + "x" * 99 + "'" + ".replace('x', 'xxxxxxxxxxxxxxxxxxxx')" * 9 + ".size() > 0",
    "comment": bind_bomb(12).replace("cel.bind(", "cel.bind // a comment\n("),
    "time": f"{ITEMS}.all(a, {ITEMS}.all(b, {ITEMS}.all(c, '{'x' * 999}'.replace('x', 'yyyyyyyyyyyyyyyy') != '')))",
}


SEARCH = 'device.attributes["d"].hay.contains(device.attributes["d"].needle)'


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_selector_of_a_file_has_limits_of_memory_and_time(bomb):
    matches = FileSelectors(ClaimObjects({"any": DeviceClass("any")}))

    with pytest.raises(LongSelectorError, match="takes more than 1 s or 128 MB, which only the scheduler computes"):
        matches(ClaimRequest("gpu", "any", selectors=(BOMBS[bomb],)), GPU)


def test_selectors_of_a_file_that_are_cheap_each_have_the_same_limit_of_time(monkeypatch):
    monkeypatch.setattr(device_selectors, "MAX_SECONDS", 0.1)
    matches = FileSelectors(ClaimObjects({"any": DeviceClass("any")}))
    selector = " || ".join(f'device.attributes["d"].i == -{number}' for number in range(1, 250))
    devices = [SliceDevice(DeviceId("d", "p", str(number)), {"d/i": number}) for number in range(10_000)]

    with pytest.raises(LongSelectorError, match=r"takes more than 0\.1 s or 128 MB, which only the scheduler computes"):
        assert not any(matches(ClaimRequest("gpu", "any", selectors=(selector,)), device) for device in devices)


def test_many_selectors_of_equal_devices_have_the_same_limit_of_time():
    matches = FileSelectors(ClaimObjects({"any": DeviceClass("any", ("true",) * 5_000)}))
    devices = [SliceDevice(DeviceId("d", "p", str(number))) for number in range(4_000)]

    def count():
        return sum(matches(ClaimRequest("gpu", "any"), device) for device in devices)

    with pytest.raises(LongSelectorError, match="takes more than 1 s or 128 MB, which only the scheduler computes"):
        count()
    del devices[10:]
    with bounded(1_000):  # what is known takes no time
        assert count() == 10


@pytest.mark.parametrize("hay", ["a" * 2_000_000, ("a" * 2_000_000,), ("a",) * 2_000], ids=["text", "item", "list"])
def test_values_of_a_file_that_are_long_are_only_used_in_the_process(hay, monkeypatch):
    """Searching one in another can take hours, in a call that nothing else ends."""
    device = SliceDevice(DeviceId("d", "p", "x"), {"d/hay": hay, "d/needle": "a" * 1_000_000 + "b"})
    matches = FileSelectors(ClaimObjects({"any": DeviceClass("any")}))
    monkeypatch.setattr(device_selectors, "select", None)

    with pytest.raises(SelectorError):
        matches(ClaimRequest("gpu", "any", selectors=(SEARCH,)), device)


def test_selectors_of_a_file_that_repeat_something_are_evaluated_as_others_are():
    matches = FileSelectors(ClaimObjects({"any": DeviceClass("any")}))
    repeating = 'device.attributes["gpu.example.com"].all(name, name.replace("x", "y") != "") && '

    def outcome(expression):
        return matches(ClaimRequest("gpu", "any", selectors=(repeating + expression,)), GPU)

    assert (outcome("true"), outcome("false"), outcome('device.driver == "gpu.example.com"')) == (True, False, True)
    with pytest.raises(FailingSelectorError, match=r'fails for device gpu.example.com/node-a/gpu-0: .*"size"'):
        outcome('device.attributes["gpu.example.com"].size == 1')
    assert pickle.loads(pickle.dumps(matches))(ClaimRequest("gpu", "any"), GPU)  # noqa: S301 - for other processes


def test_a_selector_that_no_api_server_accepts_is_too_long():
    with pytest.raises(FailingSelectorError, match="has more than 10240 characters"):
        select("true" + " " * 10_240, GPU)


VALUES = st.sampled_from([0, 1, False, True, "1", "1.0.0"])
EXPRESSIONS = (
    'device.attributes["a"].x == 1',
    "has(device.attributes['a'].x)",
    'device.attributes["a"].?x.orValue(true) == true',
    '"b" in device.attributes',
    'device.attributes["a"] == device.attributes["b"]',
    'device.attributes["a"].exists(name, name == "y")',
    'device.attributes["a" + ""].y == 1',
    'cel.bind(both, device.attributes["b"], both.x == 1)',
    'device.attributes["a"].x.isGreaterThan(semver("0.1.0"))',
)


@given(st.sampled_from(EXPRESSIONS), st.data())
def test_devices_with_equal_relevant_values_are_selected_alike(expression, data):
    names = st.sampled_from(["a/x", "a/y", "b/x"])

    def outcome(device: SliceDevice) -> object:
        try:
            return select(expression, device)
        except SelectorError:
            return "error"

    first, second = (
        SliceDevice(DeviceId("d", "p", name), attributes, frozenset(data.draw(st.sets(names, max_size=2))))
        for name in ("one", "two")
        for attributes in [data.draw(st.dictionaries(names, VALUES, max_size=2))]
    )

    if relevant_values(expression, first) == relevant_values(expression, second):
        assert outcome(first) == outcome(second)


def test_without_the_library_the_error_says_how_to_get_it():
    program = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from alignup.align.claims.resource_claims import DeviceId, SliceDevice\n"
        "from alignup.kubernetes.manifests.device_selectors import SelectorError, select\n"
        "try: select('true', SliceDevice(DeviceId('d', 'p', 'x')))\n"
        "except SelectorError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603

    assert run.stdout == "selectors of claims need the library cel-expr-python; install alignup[claims]\n"

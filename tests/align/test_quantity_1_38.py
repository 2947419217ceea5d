"""Amounts as Kubernetes 1.38 evaluates them, beside 1.37; what is read is the same but for one exponent."""

import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import PodError, QuantityError
from alignup.align.host import Host, Settings
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.release import find_release
from alignup.align.workload.validation import PodSource, accept
from alignup.machines import synthetic
from tests.align.hosts import pod
from tests.conformance.harness import OWN_VECTORS, cases
from tests.conformance.test_quantity import check, facts

R37, R38 = find_release("1.37"), find_release("1.38")
MAX, MIN = (1 << 63) - 1, -(1 << 63)


@pytest.mark.parametrize(
    ("text", "before", "now"),
    [
        ("1E", 0, MAX),
        ("-999999999999999999", -3875820019684211736, MIN),
        ("1500m", 1500, 1500),
    ],
)
def test_thousandths_saturate(text, before, now):
    amount = Quantity.parse(text)

    assert (amount.under(R37).milli(), amount.under(R38).milli()) == (before, now)


@pytest.mark.parametrize(
    ("text", "before", "now"),
    [("-1.0000000001", 0, -2), ("1e30", None, MAX), ("0.1n", 1, 1)],
)
def test_values_are_rounded_away_from_zero_and_saturate(text, before, now):
    amount = Quantity.parse(text)

    assert amount.under(R38).value() == now
    assert before is None or amount.under(R37).value() == before


@pytest.mark.parametrize(
    ("text", "before", "now"),
    [
        ("1000000000000000000", None, 10**18),
        ("9223372036854775807", None, MAX),
        ("9223372036854775808", None, None),  # beyond 64 bits
        # 20 digits
        ("1.5Gi", None, None),
    ],
)
def test_numbers_of_19_digits_have_the_64_bit_form(text, before, now):
    amount = Quantity.parse(text)

    assert (amount.under(R37).as_int64(), amount.under(R38).as_int64()) == (before, now)
    assert amount.under(R38) == amount


@pytest.mark.parametrize(
    ("text", "before", "now"), [("1000E", "1", "1e21"), ("1500E", "1500E", "1500E"), ("1000000E", "1", "1e24")]
)
def test_large_exponents_are_printed(text, before, now):
    amount = Quantity.parse(text)

    assert (str(amount.under(R37)), str(amount.under(R38))) == (before, now)


def test_binary_amounts_beyond_exbibytes_are_printed_as_numbers():
    amount = Quantity.of(1 << 70, QuantityFormat.BINARY_SI)

    assert (amount.under(R37).canonical(), amount.under(R38).canonical()) == ("1", "1180591620717411303424")


@pytest.mark.parametrize("text", ["1e-2147483648", "1e2147483648", "0e2147483648", "0e-2147483648"])
def test_one_exponent_is_refused(text):
    amount = Quantity.parse(text)

    with pytest.raises(QuantityError, match="unable to parse quantity's suffix"):
        amount.under(R38)


@pytest.mark.parametrize(("text", "value"), [("1e4294967297", 10), ("1e4294967299", 1000)])
def test_other_exponents_are_cut_to_32_bits_as_before(text, value):
    assert Quantity.parse(text).under(R38).value() == value


@pytest.mark.parametrize("text", ["-9223372036854775808", "-9223372036854775.808k"])
def test_the_negative_of_the_smallest_number_is_a_decimal(text):
    smallest = Quantity.parse(text).under(R38)

    assert not smallest.dec
    assert (Quantity.ZERO.under(R38) - smallest).dec
    assert (Quantity.parse("5").under(R38) - smallest).dec


def test_evaluation_can_be_undone():
    for text in ("1000000000000000000", "1000E", "2", "9Ei", "-0.1n"):
        amount = Quantity.parse(text)

        assert facts(amount.under(R38).under(R37)) == facts(amount)


def test_all_vectors_are_read_alike():
    """Quantities differ only where a number has 19 digits, a large exponent, an overflow, or is negative."""
    for _, case in cases(OWN_VECTORS / "quantity.jsonl.gz"):
        if case["kind"] != "parse" or not case["ok"]:
            continue
        now, before = facts(Quantity.parse(case["text"]).under(R38)), facts(Quantity.parse(case["text"]))
        changed = {name for name in now if now[name] != before[name]}
        exact = int(before["unscaled"]) * 10 ** min(before["exp10"] + 3, 100) if before["exp10"] >= -3 else None
        overflow = exact is None or not MIN <= exact <= MAX
        if changed & {"repr", "unscaled", "exp10", "string"} and before["repr"] == "dec" and now["repr"] == "int":
            assert sum(map(str.isdigit, case["text"])) >= 19, case
            changed -= {"repr", "unscaled", "exp10", "string"}
        if changed & {"canonical", "string"}:
            assert "e2" in now["canonical"] or "e3" in now["canonical"] or before["exp10"] >= 21, case
        if changed & {"value", "milli"}:
            assert overflow or before["sign"] < 0, case
        check({**case, "release": R37})


def test_a_memory_request_of_19_digits_is_read():
    machine = synthetic.parse("pack:1 numa:1(memory=8GiB) core:4 pu:1")
    asked = pod("p", cpu="1", memory="1000000000000000000")
    messages = []
    for release in (R37, R38):
        settings = Settings(
            memory_policy="Static",
            reservation={"memory": Quantity.parse("1Gi")},
            reserved_memory=(ReservedMemory(0, {"memory": Quantity.parse("1Gi")}),),
            release=release,
            fit_check=False,
        )
        rejection = Host(machine, settings).decide(asked).rejection
        messages.append(rejection.message if rejection else "")

    assert "failed to represent quantity as int64" in messages[0]
    assert "no NUMA nodes with enough memory is available" in messages[1]


def test_a_cpu_reservation_beyond_64_bits_stays_positive():
    settings = CpuSettings(policy="static", reservation=Quantity.parse("999999999999999999"))

    assert settings.reserved_count(R37) == 3875820019684212
    assert settings.reserved_count(R38) == 9223372036854776


@pytest.mark.parametrize(("release", "stored"), [(R37, "1"), (R38, "1e21")])
def test_the_api_server_of_the_release_rewrites_amounts(release, stored):
    asked = accept(pod("p", cpu="1", memory="1000E"), release=release)

    assert str(asked.containers[0].resources.requests["memory"]) == stored


def test_whole_numbers_beyond_64_bits_are_integers():
    asked = pod("p", cpu="1", gpu="9999999999999999999")

    with pytest.raises(PodError, match="must be an integer"):
        accept(asked, release=R37)
    assert accept(asked, release=R38)


def test_an_amount_that_the_release_cannot_read_is_an_error_of_the_pod():
    asked = pod("p", cpu="1", memory="0e2147483648")

    with pytest.raises(PodError, match=r"not valid in Kubernetes 1\.38"):
        accept(asked, source=PodSource.STATIC, host="h", release=R38)

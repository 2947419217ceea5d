"""The CPU provider's settings; ``tests/conformance/test_cpu_options.py`` has gates, values and clashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy, CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates

ALPHA = FeatureGates({"CPUManagerPolicyAlphaOptions": True})


@given(st.dictionaries(st.sampled_from(sorted(OPTION_STAGES)), st.sampled_from(["true", "0", "F", "T"])))
def test_accepted_options_end_in_the_field_of_their_name(options):
    """Options not named are off."""
    try:
        parsed = CpuOptions.parse(options, gates=ALPHA)
    except SettingsError as error:
        assert "can not be used at the same time" in str(error)
        return

    for name in OPTION_STAGES:
        assert getattr(parsed, name.replace("-", "_")) == (options.get(name) in {"true", "T"})


def test_policies_have_the_kubelets_names():
    assert CpuPolicy("none") is CpuPolicy.NONE
    assert CpuPolicy("static") is CpuPolicy.STATIC
    with pytest.raises(SettingsError, match='unknown policy: "Static"'):
        CpuPolicy("Static")


def test_policy_none_has_no_options():
    CpuSettings().check_none()
    with pytest.raises(SettingsError) as rejected:
        CpuSettings(options={"b": "2", "a": "1"}).check_none()

    assert str(rejected.value) == "new none policy error: None policy: received unsupported options=map[a:1 b:2]"


def test_a_reserved_part_of_a_cpu_counts_as_one():
    assert CpuSettings(reservation=Quantity.parse("1001m")).reserved_count() == 2


@pytest.mark.parametrize(
    ("reservation", "text"),
    [
        pytest.param(None, "unable to determine reserved CPU resources for static policy", id="not said"),
        pytest.param("0", "requires systemreserved.cpu + kubereserved.cpu to be greater than zero", id="zero"),
    ],
)
def test_the_static_policy_requires_a_reservation(reservation, text):
    settings = CpuSettings(reservation=reservation and Quantity.parse(reservation))

    with pytest.raises(SettingsError) as rejected:
        settings.reserved_count()

    assert text in str(rejected.value)

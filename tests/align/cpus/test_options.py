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


def test_a_reserved_part_of_a_cpu_counts_as_one():
    assert CpuSettings(reservation=Quantity.parse("1001m")).reserved_count() == 2

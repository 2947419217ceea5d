"""The CPU provider's settings: names, gates, values, clashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy, CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy

ALPHA = FeatureGates({"CPUManagerPolicyAlphaOptions": True})
NO_BETA = FeatureGates({"CPUManagerPolicyBetaOptions": False})
DEFAULT = FeatureGates()


@pytest.mark.parametrize(
    ("options", "gates", "text"),
    [
        pytest.param(
            {"full-pcpus": "true"}, DEFAULT, 'unknown CPU Manager Policy option: "full-pcpus"', id="an unknown name"
        ),
        pytest.param(
            {"align-by-socket": "false"},
            DEFAULT,
            'CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided',
            id="an alpha option without its gate, even switched off",
        ),
        pytest.param(
            {"distribute-cpus-across-numa": "true"},
            NO_BETA,
            'CPU Manager Policy Beta-level Options not enabled, but option "distribute-cpus-across-numa" provided',
            id="a beta option without its gate",
        ),
        pytest.param(
            {"full-pcpus-only": "yes"},
            DEFAULT,
            'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes": invalid syntax',
            id="a value that is no boolean",
        ),
        pytest.param(
            {"full-pcpus-only": "1", "distribute-cpus-across-cores": "t"},
            ALPHA,
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
            id="two options that contradict each other",
        ),
    ],
)
def test_options_the_kubelet_would_not_start_with(options, gates, text):
    with pytest.raises(SettingsError) as rejected:
        CpuOptions.parse(options, gates=gates)

    assert str(rejected.value) == text


@given(st.dictionaries(st.sampled_from(sorted(OPTION_STAGES)), st.sampled_from(["true", "0", "F", "T"])))
def test_accepted_pods_keep_their_requests(options):
    """Every accepted option ends in the field of its name, and options not named are off."""
    try:
        parsed = CpuOptions.parse(options, gates=ALPHA)
    except SettingsError as error:
        assert "can not be used at the same time" in str(error)
        return

    for name in OPTION_STAGES:
        assert getattr(parsed, name.replace("-", "_")) == (options.get(name) in {"true", "T"})


@pytest.mark.parametrize(
    ("policy", "sockets", "nodes", "accepted"),
    [
        pytest.param(Policy.BEST_EFFORT, 2, 4, True, id="several nodes a socket"),
        pytest.param(Policy.RESTRICTED, 2, 2, True, id="one node a socket"),
        pytest.param(Policy.RESTRICTED, 2, 1, False, id="several sockets a node"),
        pytest.param(Policy.SINGLE_NUMA_NODE, 2, 4, False, id="single-numa-node"),
    ],
)
def test_align_by_socket_needs_the_right_machine_and_policy(policy, sockets, nodes, accepted):
    CpuOptions().check_machine(policy, sockets=sockets, nodes=nodes)

    if accepted:
        CpuOptions(align_by_socket=True).check_machine(policy, sockets=sockets, nodes=nodes)
    else:
        with pytest.raises(SettingsError):
            CpuOptions(align_by_socket=True).check_machine(policy, sockets=sockets, nodes=nodes)


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


@pytest.mark.parametrize(
    ("reservation", "count"),
    [
        pytest.param("1", 1, id="one CPU"),
        pytest.param("1001m", 2, id="a part of a CPU counts as one"),
        pytest.param("500m", 1, id="also the first"),
    ],
)
def test_reservations_are_rounded_up(reservation, count):
    assert CpuSettings(reservation=Quantity.parse(reservation)).reserved_count() == count


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

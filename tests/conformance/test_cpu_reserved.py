"""Which CPUs are reserved, and what the kubelet says when it cannot reserve them."""

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
from alignup.align.errors import SettingsError
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from tests.conformance.cpu_cases import gates_of, options_of
from tests.conformance.harness import Case, run
from tests.vector_types import view_of


def test_cpus_are_reserved_as_the_kubelet_does(request):
    run(request, "cpu_reserved", check)


def check(case: Case) -> None:
    try:
        provider = created(case)
    except SettingsError as error:
        assert str(error) == case["error"]
        return

    assert case["error"] is None, f"{bits.show(provider.reserved)} instead of {case['error']!r}"
    assert bits.show(provider.reserved) == case["reserved"]
    assert bits.show(provider.reserved_cores) == case["reserved_physical"]
    assert bits.show(provider.allocatable) == case["allocatable"]


def created(case: Case) -> CpuProvider:
    """The provider made of the whole configuration, or of a number of CPUs to reserve."""
    view, explicit = view_of(case["topology"]), bits.parse(case["reserved_cpus_flag"])
    if case["num_reserved"] < 0:
        settings = CpuSettings(
            policy="static",
            options=dict.fromkeys(case["options"], "true"),
            reservation=None if case["reservation"] == "unset" else Quantity.parse(case["reservation"]),
            explicit=explicit,
        )
        gates = gates_of(["CPUManagerPolicyAlphaOptions"], case["release"])
        return CpuProvider.create(view, settings, topology=Policy.NONE, gates=gates)
    options = options_of(case["options"])
    options.check_machine(Policy.NONE, sockets=view.num_sockets, nodes=view.num_nodes)
    reserved = select_reserved_cpus(
        view, options, count=case["num_reserved"], explicit=explicit, release=case["release"]
    )
    return CpuProvider(view=view, policy=CpuPolicy.STATIC, options=options, reserved=reserved)

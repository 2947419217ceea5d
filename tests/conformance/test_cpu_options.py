"""The options of the static policy: their gates, values, clashes and error texts."""

from dataclasses import asdict

from alignup.align.cpus.options import CpuOptions
from alignup.align.errors import SettingsError
from alignup.align.settings import FeatureGates, Policy
from tests.conformance.harness import Case, run


def test_options_are_parsed_and_rejected_as_in_the_kubelet(request):
    run(request, "cpu_options", check)


def check(case: Case) -> None:
    try:
        options = CpuOptions.parse(case["options"], gates=FeatureGates(case["gates"], case["release"]))
        policy = Policy(case["topology_manager_policy"])
        options.check_machine(policy, sockets=case["num_sockets"], nodes=case["num_numa"])
    except SettingsError as error:
        assert str(error) in case["errors"]
        return

    assert not case["errors"], f"accepted instead of {case['errors']}"
    assert {name.replace("_", "-"): on for name, on in asdict(options).items()} == case["effective"]

"""``--config`` and ``--config-dir`` with what people have."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import in_process

NODE = Path("examples/node")
INPUTS = Path("examples/inputs")
TYPE = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
ON_MACHINE = ("--machine", NODE / "machine.yaml")


@pytest.fixture
def drop_ins(tmp_path):
    directory = tmp_path / "conf.d"
    directory.mkdir()

    def add(name, **fields):
        (directory / name).write_text(json.dumps({**TYPE, **fields}))
        return directory

    add("10-policy.conf", topologyManagerPolicy="best-effort")
    return add


def explain(*options):
    return in_process("why", "-f", NODE / "trainer.yaml", *ON_MACHINE, *options)


def test_drop_ins_are_merged_into_the_file_of_config(drop_ins):
    """docs/inputs.md has one for each form of configuration."""
    directory = drop_ins("20-scope.conf", topologyManagerScope="pod")

    merged = explain("--config", NODE / "kubelet.yaml", "--config-dir", directory)
    alone = explain("--config", directory)
    overridden = explain("--config-dir", directory, "--set", "topologyManagerPolicy=restricted")

    assert "policy best-effort · scope pod" in merged.stdout
    assert not merged.stderr
    assert "policy best-effort · scope pod" in alone.stdout
    assert "policy restricted · scope pod" in overridden.stdout


def test_the_file_in_a_kubelet_directory_is_used(tmp_path):
    (tmp_path / "config.yaml").write_bytes((NODE / "kubelet.yaml").read_bytes())

    run = explain("--config", tmp_path)

    assert run.stdout == explain("--config", NODE / "kubelet.yaml").stdout
    assert not run.stderr


def test_a_directory_without_a_configuration_is_refused(tmp_path):
    run = explain("--config", tmp_path)

    assert run.returncode == 2
    assert run.stderr.startswith(f"alignup: --config: {tmp_path} has neither config.yaml nor drop-ins (*.conf)\n")


def test_without_a_configuration_the_first_line_names_the_defaults():
    assert explain().stdout.startswith(
        "No --config: the kubelet's defaults are used: topologyManagerPolicy none,\ncpuManagerPolicy none, "
        "memoryManagerPolicy None\n"
    )
    assert explain("--set", "topologyManagerScope=pod").stdout.startswith(
        "No --config: the kubelet's defaults are used, with topologyManagerScope=pod\n"
    )


def test_notes_and_warnings_name_the_file(tmp_path):
    given = tmp_path / "pool.yaml"
    spec = {"kubeletConfig": {"topologyManagerPolicy": "restricted", "reservedCPUs": "0"}}
    kind = {"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "KubeletConfig"}
    given.write_text(json.dumps({**kind, "spec": spec}))

    notes = explain("--config", given).stderr

    assert f"{given}: each node sets systemReserved" in notes
    assert f'{given}, spec.kubeletConfig: the kubelet ignores unknown field "reservedCPUs"' in notes


def test_errors_in_files_of_distributions_name_the_line_and_what_to_fetch(tmp_path):
    wrong = tmp_path / "config.yaml"
    wrong.write_text("kubelet-arg:\n- max-pods=5\n- topology-manager-policy=strict\n")
    profile = tmp_path / "profile.yaml"
    text = (INPUTS / "performance-profile.yaml").read_text("utf-8")
    profile.write_text(text.replace("reserved: 0,8,16,24", "reserved: first"))

    value, cpus, lacking = (explain("--config", path) for path in (wrong, profile, INPUTS / "nodeadm.yaml"))

    assert f"{wrong}:3: kubelet-arg[1]: topologyManagerPolicy: invalid configuration" in value.stderr
    assert f"{profile}:9: spec.cpu.reserved: " in cpus.stderr
    assert (
        "Each node sets kubeReserved and maxPods, unknown here: use --set, or fetch it with kubectl" in lacking.stderr
    )
    assert [run.returncode for run in (value, cpus, lacking)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"kind": "Pod"}, ["90-last.conf: ", "the kubelet stops at load", 'no kind "Pod"'], id="another kind"
        ),
        pytest.param(
            {"topologyManagerPolicy": "best"},
            ["90-last.conf:1: topologyManagerPolicy: ", "the kubelet stops at validation"],
            id="an invalid value",
        ),
    ],
)
def test_errors_name_the_drop_in_and_the_field(drop_ins, fields, expected):
    run = explain("--config", NODE / "kubelet.yaml", "--config-dir", drop_ins("90-last.conf", **fields))

    assert run.returncode == 2
    assert [text for text in expected if text not in run.stderr] == []


def test_doctor_reports_the_drop_in_that_sets_a_field(drop_ins):
    directory = drop_ins("50-cpus.conf", cpuManagerPolicyOptions={"align-by-socket": "true"}, maxPods=0)

    run = in_process(
        *("doctor", *ON_MACHINE, "--config", NODE / "kubelet.yaml", "--config-dir", directory, "-o", "json")
    )

    findings = json.loads(run.stdout)["findings"]
    where = [finding["where"] for finding in findings if finding["severity"] == "error"]
    assert where == [f"cpuManagerPolicyOptions[align-by-socket] in {directory}/50-cpus.conf"]


def test_doctor_prints_what_is_unknown_about_a_configuration(tmp_path):
    live = tmp_path / "configz.json"
    live.write_text(json.dumps({"kubeletconfig": {"featureGates": {"CPUManager": True}}}))

    run = in_process("doctor", *ON_MACHINE, "--config", live)

    assert "ignored featureGates[CPUManager]" in run.stderr
    assert run.stdout.startswith(str(live))

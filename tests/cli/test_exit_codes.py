"""All commands obey one table of exit codes. The exit codes of errors in options and files are tested with them."""

import pytest

from alignup.align.errors import SourceLocation
from alignup.cli import exit_codes
from alignup.cli.app import NOWHERE, Place
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest

MACHINE = ["--machine", "numa:2 core:4 pu:1"]

CONFIGURATION = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: foo
"""
FILES = {
    "pod.yaml": pod_manifest(cpu="1", memory="1Gi"),
    "large.yaml": pod_manifest(cpu="100", memory="1Gi"),
    "kubelet.yaml": CONFIGURATION,
}


@pytest.fixture
def place(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["why", "-f", "pod.yaml", *MACHINE], exit_codes.OK),
        (["why", "-f", "large.yaml", *MACHINE], exit_codes.FAILED),
        (["doctor", "--config", "missing.yaml", *MACHINE], exit_codes.USAGE),
        (["doctor", "--config", "kubelet.yaml", *MACHINE], exit_codes.FAILED),
        (["run", "--cpus", "100", "--dry-run", *MACHINE, "--", "true"], exit_codes.RUN_REJECTED),
        (["cluster", "nodes", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["observe", "--kubelet-dir", ".", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["nri", "--mode", "decide", "--kubelet-dir", ".", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["nri", "--kubelet-dir", "missing"], exit_codes.USAGE),
        (["nri", "--index", "x", "--kubelet-dir", "."], exit_codes.USAGE),
        (["schedule", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["webhook-certificates", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["agent", "--config", "missing.yaml"], exit_codes.USAGE),
        (["agent", "--token-file", ".", *MACHINE], exit_codes.USAGE),
        (["completion", "tcsh"], exit_codes.USAGE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_exit_code_says_whether_the_answer_or_the_input_is_bad(words, code, place):
    run = in_process(*words, cwd=place, env={"ALIGNUP_RUN_DIR": str(place)})

    assert run.returncode == code, run.stderr
    assert ("missing" in " ".join(words)) <= ("missing" in run.stderr)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("place", "message", "detail"),
    [
        (Place.at(SourceLocation("a.yaml", 2, 7), "Pod web"), "a.yaml:7: bad", "document 2, Pod web"),
        (Place(file="a.yaml", detail="the kubelet stops at load"), "a.yaml: bad", "the kubelet stops at load"),
        (Place(file="a.yaml, b.yaml"), "a.yaml, b.yaml: bad", ""),
        (Place(file="bad"), "bad", ""),
        (Place("--machine", file="a.yaml"), "--machine: bad", ""),
        (Place("--set", value="a=b"), "--set a=b: bad", ""),
        (Place(detail="in the workload"), "bad", "in the workload"),
        (NOWHERE, "bad", ""),
    ],
)
def test_places_are_put_before_the_message(place, message, detail):
    assert (place.put_before(["bad"]), place.detail) == ([message], detail)

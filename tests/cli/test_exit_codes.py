"""All commands obey one table of exit codes, and name the file, line, field or option that is at fault."""

import pytest

from alignup.align.errors import SourceLocation
from alignup.cli import exit_codes
from alignup.cli.app import NOWHERE, Place
from tests.cli.commands import in_process
from tools.command_tree import walk

COMMANDS = [command for command in walk() if not command.subcommands]
MACHINE = ["--machine", "numa:2 core:4 pu:1"]
NO_AGENT = ["--agent", "unix:nowhere.sock"]

POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: %s, memory: 1Gi}}
"""
CONFIGURATION = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: %s
"""
FILES = {
    "pod.yaml": POD % "1",
    "large.yaml": POD % "100",
    "foo.yaml": POD % "foo",
    "broken.yaml": "a: 1\n b: 2\n",
    "kubelet.yaml": CONFIGURATION % "foo",
    "machine.yaml": "alignup: machine/v1\ncpus: 3\n",
}


@pytest.fixture
def place(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def usage_code(command):
    return exit_codes.RUN_FAILED if command.words[1] == "run" else exit_codes.USAGE


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command.words[1:]))
def test_every_command_ends_with_0_for_help_and_2_for_an_unknown_option(command):
    helped = in_process(*command.words[1:], "--help")
    wrong = in_process(*command.words[1:], "--no-such-option")

    assert helped.returncode == exit_codes.OK
    assert wrong.returncode == usage_code(command)
    assert "--no-such-option" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["why", "-f", "pod.yaml", *MACHINE], exit_codes.OK),
        (["why", "-f", "large.yaml", *MACHINE], exit_codes.FAILED),
        (["why", "-f", "missing.yaml", *MACHINE], exit_codes.USAGE),
        (["simulate", "-f", "foo.yaml", *MACHINE], exit_codes.USAGE),
        (["doctor", "--config", "missing.yaml", *MACHINE], exit_codes.USAGE),
        (["doctor", "--config", "kubelet.yaml", *MACHINE], exit_codes.FAILED),
        (["machine", "show", "machine.yaml"], exit_codes.USAGE),
        (["machine", "record", "missing/host.tar.gz"], exit_codes.FAILED),
        (["machine", "record"], exit_codes.USAGE),
        (["run", "--cpus", "foo", "--", "true"], exit_codes.RUN_FAILED),
        (["run", "--cpus", "100", "--dry-run", *MACHINE, "--", "true"], exit_codes.RUN_REJECTED),
        (["cluster", "nodes", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["observe", "--dry-run", "--kubelet-dir", "missing"], exit_codes.USAGE),
        (["observe", "--kubelet-dir", ".", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["nri", "--mode", "decide", "--kubelet-dir", ".", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["nri", "--kubelet-dir", "missing"], exit_codes.USAGE),
        (["nri", "--index", "x", "--kubelet-dir", "."], exit_codes.USAGE),
        (["schedule", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["webhook-certificates", "--kubeconfig", "missing.config"], exit_codes.USAGE),
        (["agent", "--config", "missing.yaml"], exit_codes.USAGE),
        (["agent", "--token-file", ".", *MACHINE], exit_codes.USAGE),
        (["completion", "tcsh"], exit_codes.USAGE),
        *(
            ([name, *more, *NO_AGENT], exit_codes.FAILED)
            for name, *more in (["admit", "-f", "pod.yaml"], ["release", "web"], ["ps"], ["decisions"], ["watch"])
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_exit_code_says_whether_the_answer_or_the_input_is_bad(words, code, place):
    run = in_process(*words, cwd=place, env={"ALIGNUP_RUN_DIR": str(place)})

    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["why", "-f", "foo.yaml", *MACHINE], "foo.yaml:7: spec.containers[0].resources.limits[cpu]: not a quantity"),
        (["why", "-f", "broken.yaml", *MACHINE], "broken.yaml:2: mapping values are not allowed"),
        (["why", "-f", "missing.yaml", *MACHINE], "missing.yaml: cannot be read: No such file or directory"),
        (["why", "-f", "pod.yaml", "--config", "kubelet.yaml", *MACHINE], "kubelet.yaml:3: topologyManagerPolicy: "),
        (["why", "-f", "pod.yaml", "--config", "broken.yaml", *MACHINE], "broken.yaml:2: mapping values"),
        (["why", "-f", "pod.yaml", "--config", "missing.yaml", *MACHINE], "--config: missing.yaml: No such file"),
        (["why", "-f", "pod.yaml", "--machine", "machine.yaml"], "machine.yaml:2: cpus: expected `array`, got `int`"),
        (["why", "-f", "pod.yaml", "--devices", "foo", *MACHINE], '--devices: "foo" has no number of devices'),
        (["why", "-f", "pod.yaml", "--set", "foo", *MACHINE], "--set foo: no value"),
        (["run", "--cpus", "foo", "--", "true"], '--cpus: "foo" is not a quantity, such as 2, 500m or 4Gi'),
        (["run", "--device", "a/b=x", "--", "true"], '--device a/b=x: "x" is not a quantity'),
    ],
)
def test_an_error_begins_with_the_file_line_and_field_or_the_option(words, start, place):
    run = in_process(*words, cwd=place, env={"ALIGNUP_RUN_DIR": str(place)})

    assert run.stderr.startswith(f"alignup: {start}"), run.stderr


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

"""A bad value of an option is an error that begins with the option, whatever the command."""

import click
import pytest

from alignup.cli.app import app
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tools.command_tree import walk

MACHINE = ["--machine", "numa:2 core:4 pu:1"]


def commands():
    """Every command, by its words."""
    for described in walk():
        command: click.Command | None = app
        for word in described.words[1:]:
            command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if command is not None and not isinstance(command, click.Group):
            yield described.words[1:], command


OPTIONS = [
    (words, option) for words, command in commands() for option in command.params if isinstance(option, click.Option)
]
NUMBERS = [(words, option.opts[-1]) for words, option in OPTIONS if isinstance(option.type, click.FloatRange)]
TYPED = [
    (words, option.opts[-1])
    for words, option in OPTIONS
    if isinstance(option.type, click.Choice | click.IntRange | click.FloatRange | type(click.INT) | type(click.FLOAT))
]


@pytest.mark.parametrize(
    ("words", "option"), TYPED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else value
)
def test_numbers_and_choices(words, option):
    run = in_process(*words, option, "foo")

    assert run.stderr.startswith(f"alignup: {option}: 'foo' is not "), run.stderr
    assert "\n  Try 'alignup" in run.stderr
    assert run.returncode == (125 if words == ("run",) else 2)


@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=lambda value: value if isinstance(value, str) else value[-1])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_are_finite(words, option, number):
    run = in_process(*words, option, number)

    assert run.stderr.startswith(f"alignup: {option}: "), run.stderr
    assert (run.returncode, run.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("why -f pod.yaml --machine missing.yaml", "--machine: missing.yaml does not exist"),
        ("why -f pod.yaml --machine pack:foo", "--machine: "),
        ("why -f pod.yaml --devices foo", '--devices: "foo" has no number of devices'),
        ("why -f pod.yaml --config missing", "--config: missing: No such file or directory"),
        ("why -f pod.yaml --config-dir missing", "--config-dir: missing: No such file or directory"),
        ("why -f pod.yaml --set foo", "--set foo: no value"),
        ("why -f pod.yaml --set foo=1", '--set foo=1: unknown field "foo"'),
        ("why -f pod.yaml --set maxPods={", "--set maxPods={: did not find expected node content"),
        ("why -f pod.yaml --kubelet-dir missing", "--kubelet-dir: missing: no such directory"),
        ("why -f pod.yaml --kubelet-dir . --pods missing", "missing: cannot be read: No such file"),
        ("why -f pod.yaml --pod foo", "--pod: workload 'foo' not found; pod.yaml has web"),
        ("why -f missing", "missing: cannot be read: No such file or directory"),
        ("simulate --generate mixed --count 2 --save missing/file", "--save: missing/file: No such file"),
        ("simulate --generate mixed --html missing/file", "--html: missing/file: No such file"),
        ("simulate --generate mixed --svg missing/file", "--svg: missing/file: No such file"),
        ("simulate --generate mixed --strategy foo", "--strategy: is for clusters"),
        ("simulate --generate mixed --strategy alignup", "--strategy: is for clusters"),
        ("simulate --generate mixed --retries 6", "--retries: is for clusters"),
        ("simulate --generate mixed --rate 2", "--rate: is for clusters"),
        (
            "simulate --generate mixed --nodes 2 --strategy foo",
            "--strategy: unknown strategy foo; expected",
        ),
        ("run --cpus foo -- true", '--cpus: "foo" is not a quantity, such as 2, 500m or 4Gi'),
        ("run --memory foo -- true", '--memory: "foo" is not a quantity'),
        ("run --hugepages foo -- true", "--hugepages foo: invalid value; use a value like 2Mi=64Mi"),
        ("run --device a/b=x -- true", '--device a/b=x: "x" is not a quantity'),
        (
            "run --device gpu=1 -- true",
            "--device gpu=1: gpu is not a device; write DOMAIN/NAME, such as nvidia.com/gpu=1",
        ),
        ("run --device cpu=1 -- true", "--device cpu=1: cpu is not a device"),
        ("run --wait foo -- true", '--wait: "foo" is not a number of seconds'),
        ("run --dry-run --no-agent --devices foo -- true", '--devices: "foo" has no number of devices'),
        ("ps --agent foo", "--agent: 'foo' is not an address"),
        ("ps --token-file missing", "--token-file: missing: No such file"),
        ("ps --ca-file missing", "--ca-file: missing: No such file"),
        ("agent --listen foo", "--listen: 'foo' is not an address"),
        ("agent --web-listen foo", "--web-listen: 'foo' is not an address"),
        ("agent --token-file missing", "--token-file: missing: No such file"),
        ("schedule --webhook-cert-file missing --webhook-private-key-file missing", "--webhook-cert-file: missing: No"),
        ("observe --kubelet-dir missing", "--kubelet-dir: missing: no such directory"),
        ("observe --kubelet-dir . --host-root missing", "--host-root: missing: No such file"),
        ("observe --kubelet-dir . --dry-run --config missing", "--config: missing: No such file"),
        ("schedule --health-listen foo", "--health-listen: foo is not an address"),
        ("machine record --root missing host.tar.gz", "--root: missing is not a directory"),
    ],
)
def test_values_that_commands_parse(words, start, tmp_path):
    (tmp_path / "pod.yaml").write_text(pod_manifest(cpu="1", memory="1Gi"))
    name, *rest = words.split()
    on = MACHINE if name in {"why", "simulate", "doctor", "agent"} and "--machine" not in rest else []

    run = in_process(name, *on, *rest, cwd=tmp_path, env={"ALIGNUP_RUN_DIR": str(tmp_path), "HOME": str(tmp_path)})

    assert run.stderr.startswith(f"alignup: {start}"), run.stderr
    assert "Traceback" not in run.stderr
    assert run.returncode == (125 if name == "run" else 2)


def test_the_last_of_repeated_single_values_counts():
    run = in_process("simulate", "--generate", "mixed", "--count", "1", "--count", "2", *MACHINE, "-o", "json")

    assert run.stdout.count('"outcome"') == 2

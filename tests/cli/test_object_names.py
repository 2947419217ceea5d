"""Pods are named and selected as for kubectl, whatever the command."""

import json

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alignup.cli.app import InputError
from alignup.cli.object_names import parse_object_name, parse_object_names, parse_selector
from alignup.cli.pod_status import age
from alignup.cli.terminal import DOCUMENTS
from tests.cli.commands import in_process, on_a_terminal
from tests.cli.fake_agent import serve_fake_agent
from tests.cli.test_option_errors import commands
from tests.short_paths import short_directory

LABELS = {"app": "web", "tier": "front"}
NAMES = st.text("abcz019-_./", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app=web,tier!=front", False),
        ("app != db", True),
        ("missing!=x", True),
        ("app in (db, web)", True),
        ("app notin (db,web)", False),
        ("zone notin (a)", True),
        ("app", True),
        ("!app", False),
        ("! zone, app", True),
        ("zone", False),
        ("app=", False),
    ],
)
def test_selectors(selector, expected):
    assert all(requirement.matches(LABELS) for requirement in parse_selector(selector)) is expected


@pytest.mark.parametrize("selector", ["=web", "app=web tier", "app in web", "app in (a", "a!b", "()", ",,"])
def test_what_is_not_a_selector_is_an_error(selector):
    with pytest.raises(InputError, match="is not a label selector"):
        parse_selector(selector)


@given(st.dictionaries(NAMES, NAMES, max_size=4), st.dictionaries(NAMES, NAMES, max_size=4))
def test_a_selector_of_equalities_selects_supersets(wanted, labels):
    text = ",".join(f"{key}={value}" for key, value in wanted.items())

    selected = all(requirement.matches(labels) for requirement in parse_selector(text))

    assert selected is (wanted.items() <= labels.items())


def test_names():
    assert parse_object_name("web", "ml") == ("Pod", "ml", "web")
    assert parse_object_name("ml/web", "default") == ("Pod", "ml", "web")
    assert parse_object_name("pods/web") == parse_object_name("po/web") == ("Pod", "", "web")
    assert parse_object_name("deployments.apps/web", "ml") == ("Deployment", "ml", "web")
    assert parse_object_names(["sts", "a", "b"]) == [("StatefulSet", "", "a"), ("StatefulSet", "", "b")]


@pytest.fixture(scope="module")
def agent():
    with short_directory() as place, serve_fake_agent(place) as agent:
        for name in ("web-0", "web-1", "other"):
            agent.admit(name)
        yield agent


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["web-0", "web-1", "other"]),
        (("-A",), ["web-0", "web-1", "other"]),
        (("other",), ["other"]),
        (("default/other", "pod/web-0"), ["other", "web-0"]),
        (("pod", "web-0", "web-1"), ["web-0", "web-1"]),
        (("deployment/web",), ["web-0", "web-1"]),
        (("-n", "default", "sts/web"), ["web-0", "web-1"]),
        (("-n", "ml"), []),
        (("-l", "app=none"), []),
        (("-l", "!app"), ["web-0", "web-1", "other"]),
    ],
)
def test_ps_selects_pods(agent, words, expected):
    run = in_process("ps", *words, "-o", "json", env=agent.env)

    assert [pod["name"] for pod in json.loads(run.stdout)["pods"]] == expected, run.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("ps", "gone"), 1, "pod gone not found"),
        (("ps", "deployment/gone"), 1, "deployment/gone: no pods gone-N found"),
        (("ps", "-l", "=x"), 2, "-l: '=x' is not a label selector"),
        (("release",), 2, "Give POD, or select pods with -l."),
        (("release", "-l", "app=none"), 1, "no such pods found"),
        (("decisions", "deployment/web"), 2, "Decisions are about pods: name one of web, such as web-0."),
        (("decisions", "other", "--pod", "other"), 2, "Give POD once."),
    ],
)
def test_what_is_not_found_is_said(agent, words, code, message):
    run = in_process(*words, env=agent.env)

    assert (run.returncode, run.stderr.splitlines()[0]) == (code, f"alignup: {message}")


def test_decisions_about_a_pod(agent):
    for words in (("other",), ("pod/other",), ("--pod", "other"), ("other", "-n", "default", "-A")):
        listed = json.loads(in_process("decisions", *words, "-o", "json", env=agent.env).stdout)["decisions"]
        assert {entry["decision"]["pod"]["name"] for entry in listed} == {"other"}, words
    names = in_process("decisions", "other", "-o", "name", env=agent.env).stdout.split()
    assert names == [f"decision/{entry['id']}" for entry in listed]


@pytest.mark.parametrize("command", ["ps", "decisions"])
def test_tables_fit_the_terminal_unless_they_are_wide(command):
    with short_directory() as place, serve_fake_agent(place) as agent:
        agent.admit("a-much-longer-name-of-a-pod-7d9f8c6b5-x2x4z")
        narrow, wide = (
            on_a_terminal(command, "-o", output, env={**agent.env, "COLUMNS": "80"}) for output in ("text", "wide")
        )

    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 80
    assert "AGE" in narrow


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")]
)
def test_ages(seconds, expected):
    assert age("1970-01-01T00:00:00Z", seconds) == expected


WORKLOADS = """
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ml, labels: {app: web}}, spec: {containers: [{name: app}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: db}}, spec: {containers: [{name: app}]}}
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-n", "ml"), ["a"]),
        (("-l", "app=db"), ["b"]),
        (("-l", "app"), ["a", "b"]),
        (("--pod", "ml/a", "-n", "ml"), ["a"]),
    ],
)
def test_why_selects_workloads_of_files(tmp_path, words, expected):
    (tmp_path / "pods.yaml").write_text(WORKLOADS)

    run = in_process("why", tmp_path / "pods.yaml", "--machine", "numa:2 core:4 pu:1", *words, "-o", "yaml")

    assert [answer["workload"]["name"] for answer in yaml.safe_load(run.stdout)["answers"]] == expected, run.stderr
    none = in_process("why", tmp_path / "pods.yaml", "--machine", "numa:2 core:4 pu:1", "-n", "x", "-l", "app=web")
    assert none.returncode == 2
    assert none.stderr.startswith(f"alignup: -l: {tmp_path}/pods.yaml has no workload with namespace x and labels app")


def test_where_there_is_json_there_is_yaml():
    for words, command in commands():
        for option in command.params:
            if "-o" in option.opts and isinstance(option.type, click.Choice):
                formats = set(option.type.choices)
                assert formats.isdisjoint(DOCUMENTS) or formats.issuperset(DOCUMENTS), words


def test_pods_are_selected_alike_wherever_they_are_named():
    for words in (("cluster", "why"), ("cluster", "collect"), ("collect",), ("release",), ("ps",)):
        command = next(command for name, command in commands() if name == words)
        options = {name for option in command.params for name in option.opts}
        assert {"-n", "--namespace", "-A", "--all-namespaces", "-l", "--selector"} <= options, words

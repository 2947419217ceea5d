"""Pods on their way in, where the agent runs them: what is taken, what is refused, and who runs itself."""

import json

import pytest

from alignup.agent.service import SELF_RUN_ANNOTATION, accept_runnable, is_self_run, read_pod
from alignup.align.errors import PodError
from alignup.cli.agent import PERMISSIONS
from alignup.kube.podspec.types import Permission
from tests.agent.agents import pod

NOTHING: frozenset[Permission] = frozenset()


def sent(document, allowed=NOTHING):
    return read_pod(json.dumps(document).encode(), "application/json", accept=accept_runnable(allowed), keep=True)


def test_a_pod_that_is_to_run_keeps_its_manifest():
    taken = sent(pod("web"))

    assert json.loads(taken.manifest.text)["spec"]["containers"][0]["image"] == "example.com/app"
    assert not is_self_run(taken)


def test_one_that_runs_itself_needs_no_image():
    document = pod("run")
    del document["spec"]["containers"][0]["image"]
    document["metadata"]["annotations"] = {SELF_RUN_ANNOTATION: "true"}

    taken = sent(document)

    assert is_self_run(taken)
    assert taken.manifest is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"spec": {"hostNetwork": True}}, "--allow host-network", id="the host's network"),
        pytest.param({"metadata": {"uid": "../up"}}, "metadata.uid", id="a uid that leads elsewhere"),
        pytest.param({"metadata": {"uid": "a" * 64}}, "metadata.uid", id="a uid that is too long"),
    ],
)
def test_what_may_not_run_is_refused_with_its_field(change, said):
    document = pod("web")
    for part, fields in change.items():
        document[part] |= fields

    with pytest.raises(PodError, match=said):
        sent(document)


def test_what_is_allowed_is_taken():
    document = pod("web")
    document["spec"]["hostNetwork"] = True

    assert sent(document, frozenset({Permission.HOST_NETWORK})).manifest


def test_a_pod_without_a_uid_gets_the_one_its_name_always_gets():
    document = pod("web")
    del document["metadata"]["uid"]

    assert sent(document).uid == sent(document).uid != ""


def test_the_command_knows_every_permission():
    assert tuple(map(str, Permission)) == PERMISSIONS

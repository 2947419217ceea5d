"""Which pods the agent accepts if it runs them."""

import json

import pytest

from alignup.agent.service import SELF_RUN_ANNOTATION, accept_runnable, is_self_run, read_pod
from alignup.align.errors import PodError
from alignup.cli.agent import PERMISSIONS
from alignup.kubernetes.podspec.types import Permission
from tests.agent.agents import pod

NOTHING: frozenset[Permission] = frozenset()


def submit(document, allowed=NOTHING):
    return read_pod(json.dumps(document).encode(), accept=accept_runnable(allowed), keep=True)


def test_a_runnable_pod_carries_its_manifest():
    accepted = submit(pod("web"))

    assert json.loads(accepted.manifest.text)["spec"]["containers"][0]["image"] == "example.com/app"
    assert not is_self_run(accepted)


def test_a_self_run_pod_needs_no_image():
    document = pod("run")
    del document["spec"]["containers"][0]["image"]
    document["metadata"]["annotations"] = {SELF_RUN_ANNOTATION: "true"}

    accepted = submit(document)

    assert is_self_run(accepted)
    assert accepted.manifest is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"spec": {"hostNetwork": True}}, "--allow host-network", id="the host's network"),
        pytest.param({"metadata": {"uid": "../up"}}, "metadata.uid", id="a uid that leads elsewhere"),
        pytest.param({"metadata": {"uid": "a" * 64}}, "metadata.uid", id="a uid that is too long"),
    ],
)
def test_what_is_not_allowed_is_rejected_with_its_field(change, message):
    document = pod("web")
    for part, fields in change.items():
        document[part] |= fields

    with pytest.raises(PodError, match=message):
        submit(document)


def test_what_is_allowed_is_accepted():
    document = pod("web")
    document["spec"]["hostNetwork"] = True

    assert submit(document, frozenset({Permission.HOST_NETWORK})).manifest


def test_a_pod_without_a_uid_gets_one_derived_from_its_name():
    document = pod("web")
    del document["metadata"]["uid"]

    assert submit(document).uid == submit(document).uid != ""


def test_the_command_offers_every_permission():
    assert tuple(map(str, Permission)) == PERMISSIONS

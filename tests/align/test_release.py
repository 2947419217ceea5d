"""Versions are found, and unknown ones are answered by the nearest known release."""

import pytest

from alignup.align.errors import SettingsError
from alignup.align.host import Settings
from alignup.align.release import NEWEST, RELEASES, STRATEGY_PREVIEW, find_release, release_note, with_preview
from alignup.align.settings import FeatureGates


@pytest.mark.parametrize(
    "version", ["1.35", "v1.35", "1.35.8", "v1.35.8", "v1.35.8-eks-1de2ab1", "v1.35.0-rc.1+abc", " 1.35 "]
)
def test_a_version_names_its_minor_release(version):
    assert find_release(version).version == "1.35"
    assert release_note(version) == ""


@pytest.mark.parametrize("version", ["", "1", "35", "2.1", "1.x", "v1.35.8 or so", "1.35.8.9", "1.99999"])
def test_other_texts_are_not_versions(version):
    with pytest.raises(SettingsError, match=r"is not a version of Kubernetes; write 1\.35 or v1\.35\.8"):
        find_release(version)


def test_unknown_releases_are_answered_by_the_nearest_and_noted():
    assert find_release("1.99") is RELEASES[-1]
    assert release_note("1.99") == (
        "Kubernetes 1.99 is not known: the answers are those of 1.38 (not released; known up to alpha.2, 2026-10-07)"
    )
    assert find_release("1.20") is RELEASES[0]
    assert release_note("1.20") == "Kubernetes 1.20 is not known: the answers are those of 1.33"


def test_a_release_that_is_not_out_yet_is_noted():
    assert release_note("1.38") == "Kubernetes 1.38 is not released; known up to alpha.2, 2026-10-07"
    assert NEWEST.complete


def test_a_document_names_the_release_and_how_far_it_is_known():
    planned = with_preview(find_release("1.38"), STRATEGY_PREVIEW)

    assert find_release("1.37").to_document() == {"kubernetes": "1.37"}
    assert planned.to_document() == {
        "kubernetes": "1.38",
        "knownUpTo": "alpha.2, 2026-10-07",
        "previews": [STRATEGY_PREVIEW],
    }


def test_releases_are_in_order_and_differ_by_their_minor_version():
    assert [release.minor for release in RELEASES] == list(range(33, 39))


def test_the_gates_of_settings_are_those_of_their_release():
    settings = Settings(release=find_release("1.33"))

    assert not settings.gates.on("PodLevelResources")
    assert Settings().gates.on("PodLevelResources")


def test_a_gate_that_a_release_does_not_know_is_off():
    assert not FeatureGates(release=find_release("1.35")).on("PodLevelResourceManagers")
    with pytest.raises(KeyError):
        FeatureGates(release=find_release("1.35")).on("Unheard")


def test_a_gate_is_locked_from_a_release_on():
    name = "TopologyManagerPolicyOptions"

    assert not FeatureGates({name: False}, find_release("1.35")).on(name)
    with pytest.raises(SettingsError, match="locked"):
        FeatureGates({name: False}, find_release("1.36"))

"""What a release needs: one version, a changelog, a bill of materials, a check for advisories."""

import re
import shutil
from datetime import UTC, datetime

import pytest

from alignup import __version__
from tests.console_runner import ROOT
from tools import audit, lock, sbom, version

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class TestVersion:
    @pytest.fixture
    def copy(self, tmp_path):
        for name in version.COPIES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        return tmp_path

    def test_it_is_set_in_all_places(self, copy):
        version.set_version(copy, "1.2.3")

        texts = [(copy / name).read_text() for name in version.COPIES]
        assert all("1.2.3" in text and __version__ not in text for text in texts)

    def test_every_file_that_has_it_is_known(self):
        """The rest of the tree has it in examples of documents only."""
        paths = [path for folder in ("src", "deploy") for path in (ROOT / folder).rglob("*") if path.is_file()]
        having = {str(path.relative_to(ROOT)) for path in paths if __version__.encode() in path.read_bytes()}

        assert {name for name in having if not name.endswith(".pyc")} == set(version.COPIES)

    def test_a_file_without_it_is_an_error(self, copy):
        (copy / "deploy/helm/alignup/Chart.yaml").write_text("name: alignup\n")

        with pytest.raises(ValueError, match=r"Chart.yaml: 0 lines"):
            version.set_version(copy, "1.2.3")


def test_the_changelog_has_this_version_or_unreleased_changes():
    """Sections are in order, newest first; a release has a date, and ends the unreleased changes."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heads = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)

    assert heads[0] == ("Unreleased", "")
    assert all(date for _, date in heads[1:])
    assert [date for _, date in heads[1:]] == sorted((date for _, date in heads[1:]), reverse=True)
    assert "dev" in __version__ or heads[1][0] == __version__
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }


def test_releasing_takes_ten_steps():
    assert re.findall(r"^(\d+)\. ", (ROOT / "RELEASING.md").read_text("utf-8"), re.MULTILINE) == [
        *map(str, range(1, 11))
    ]


class TestBillOfMaterials:
    def test_it_lists_the_locked_libraries_with_their_licences(self):
        versions = lock.locked_versions()
        bill = sbom.bill_of_materials(versions, date=NOW)

        assert bill["metadata"]["component"]["version"] == __version__
        components = {one["name"]: one for one in bill["components"]}
        assert components.keys() == versions.keys()
        assert {"click", "grpcio", "cryptography"} <= components.keys()
        assert components["click"]["purl"] == f"pkg:pypi/click@{versions['click']}"
        assert components["click"]["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
        assert bill == sbom.bill_of_materials(dict(reversed(versions.items())), date=NOW)

    def test_every_library_states_a_licence_that_allows_redistribution(self):
        licences = {name: sbom.licence_of(name) for name in lock.locked_versions()}

        free = re.compile(r"MIT|BSD|Apache|ISC|PSF|Python Software|MPL|Unlicense")
        assert {name: text for name, text in licences.items() if not free.search(text)} == {}


class TestAudit:
    @pytest.mark.parametrize(
        ("fields", "found"),
        [
            ({"versions": ["1.0", "1.5"]}, True),
            ({"versions": ["1.0"]}, False),
            ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2"}]}]}, True),
            ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.5"}]}]}, False),
            ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1.6"}]}]}, False),
            ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1"}, {"last_affected": "1.5"}]}]}, True),
            ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1"}, {"last_affected": "1.4"}]}]}, False),
        ],
    )
    def test_a_locked_version_is_compared_with_the_affected_ones(self, fields, found):
        advisory = {
            "id": "PYSEC-1",
            "summary": "bad",
            "affected": [{"package": {"ecosystem": "PyPI", "name": "Some_Lib"}, **fields}],
        }

        assert list(audit.affected({"some-lib": "1.5"}, [advisory])) == (
            ["Some_Lib 1.5: PYSEC-1: bad"] if found else []
        )
        assert list(audit.affected({"some-lib": "1.5"}, [{**advisory, "withdrawn": "2026"}])) == []

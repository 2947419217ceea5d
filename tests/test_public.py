"""The public surface: what ``alignup`` exports, and that importing it costs nothing but the standard library."""

import ast
import subprocess
import sys
from types import ModuleType

import pytest

import alignup

PUBLIC = [
    "AlignError",
    "Ask",
    "ConfigurationError",
    "Container",
    "Cpu",
    "CpuSettings",
    "Decision",
    "Device",
    "Distances",
    "DocumentError",
    "FeatureGates",
    "FileError",
    "Hint",
    "Host",
    "HugePages",
    "Ledger",
    "Machine",
    "MachineError",
    "ManifestError",
    "Need",
    "NumaNode",
    "Outcome",
    "ParseError",
    "Placement",
    "Pod",
    "PodError",
    "Policy",
    "Problem",
    "Provider",
    "ProviderError",
    "QoS",
    "Quantity",
    "QuantityError",
    "Refusal",
    "ReservedMemory",
    "Resources",
    "Scope",
    "Settings",
    "SettingsError",
    "Shortfall",
    "SourceError",
    "StateError",
    "Step",
    "TopologyOptions",
    "TopologySettings",
    "TraceError",
    "Voice",
    "WorkLimitError",
    "accept",
    "bits",
    "discover",
    "from_document",
    "load",
    "to_document",
]

IMPORT_ALL = """
import pkgutil, alignup.align
for module in pkgutil.walk_packages(alignup.align.__path__, "alignup.align."):
    __import__(module.name)
"""


def test_these_names_are_public():
    assert alignup.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_of_them_is_there(name):
    assert getattr(alignup, name) is not None


def test_no_other_name_is():
    with pytest.raises(AttributeError, match="module 'alignup' has no attribute 'align_everything'"):
        _ = alignup.align_everything


def test_everything_that_can_go_wrong_is_an_align_error():
    errors = [getattr(alignup, name) for name in PUBLIC if name.endswith("Error")]

    assert len(errors) == 15
    assert all(issubclass(error, alignup.AlignError) for error in errors)


def loaded_by(code: str) -> set[str]:
    """The top-level modules that running *code* in a fresh interpreter loads."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return {name.partition(".")[0] for name in ast.literal_eval(done.stdout)}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import alignup", id="the library"),
        pytest.param(IMPORT_ALL, id="every module of the heart"),
        pytest.param("import alignup; alignup.load('numa:2 core:2 pu:1')", id="a machine from a line of text"),
    ],
)
def test_only_the_standard_library_is_loaded_by(code):
    assert loaded_by(code) - set(sys.stdlib_module_names) == {"alignup"}


def test_what_reads_machines_is_loaded_on_first_use():
    loaded = "import alignup\nassert 'alignup.discover' not in sys.modules\nalignup.load\n"

    assert "alignup" in loaded_by(f"import sys\n{loaded}assert 'alignup.discover' in sys.modules")


def test_discover_is_the_package_however_it_was_loaded():
    """A function of that name would be hidden as soon as anybody imports the package."""
    assert isinstance(alignup.discover, ModuleType)
    assert alignup.discover.load is alignup.load
    assert callable(alignup.discover.discover)

"""The public names of ``alignup``; importing it loads the standard library only."""

import ast
import subprocess
import sys

import pytest

import alignup
from alignup import machines

PUBLIC = [
    "AlignError",
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
    "MergeStep",
    "Need",
    "NumaNode",
    "Outcome",
    "ParseError",
    "Placement",
    "Pod",
    "PodError",
    "Policy",
    "PreferenceRequest",
    "Problem",
    "Provider",
    "ProviderError",
    "QoS",
    "Quantity",
    "QuantityError",
    "Rejection",
    "ReservedMemory",
    "ResourceHints",
    "Resources",
    "Scope",
    "Settings",
    "SettingsError",
    "Shortfall",
    "SourceError",
    "StateError",
    "TopologyOptions",
    "TopologySettings",
    "TraceError",
    "WorkLimitError",
    "accept",
    "bits",
    "discover",
    "from_document",
    "load",
    "load_machine",
    "load_pods",
    "load_settings",
    "preferred_devices",
    "to_document",
]

IMPORT_ALL = """
import pkgutil, alignup.align
for module in pkgutil.walk_packages(alignup.align.__path__, "alignup.align."):
    __import__(module.name)
"""


def test_these_names_are_public():
    assert alignup.__all__ == PUBLIC  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_exists(name):
    assert getattr(alignup, name) is not None


def test_no_other_name_is_public():
    with pytest.raises(AttributeError, match="module 'alignup' has no attribute 'align_everything'"):
        _ = alignup.align_everything  # type: ignore[attr-defined]


def test_every_error_is_an_align_error():
    errors = [getattr(alignup, name) for name in PUBLIC if name.endswith("Error")]

    assert len(errors) == 15
    assert all(issubclass(error, alignup.AlignError) for error in errors)


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that *code* loads in a fresh interpreter."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return {name.partition(".")[0] for name in ast.literal_eval(done.stdout)}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import alignup", id="the library"),
        pytest.param(IMPORT_ALL, id="every module of the core"),
        pytest.param("import alignup; alignup.load_machine('numa:2 core:2 pu:1')", id="a machine from a line of text"),
    ],
)
def test_only_the_standard_library_is_loaded_by(code):
    assert loaded_by(code) - set(sys.stdlib_module_names) == {"alignup"}


def test_machines_are_imported_on_first_use():
    loaded = "import alignup\nassert 'alignup.machines' not in sys.modules\nalignup.load\n"

    assert "alignup" in loaded_by(f"import sys\n{loaded}assert 'alignup.machines' in sys.modules")


def test_discover_is_the_function_of_machines():
    assert alignup.discover is machines.discover
    assert alignup.load_machine is alignup.load is machines.load

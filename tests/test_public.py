"""The public names of ``alignup``; importing it loads the standard library only."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator

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
    "explain",
    "from_document",
    "load",
    "load_machine",
    "load_pods",
    "load_settings",
    "picture",
    "preferred_devices",
    "simulate",
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


def public_functions() -> Iterator[tuple[str, object]]:
    """Return the functions, methods and properties that a user of the library can call, with their names."""
    for name in PUBLIC:
        value = getattr(alignup, name)
        if inspect.isfunction(value):
            yield name, value
        classes = value.__mro__ if inspect.isclass(value) else (value,) if inspect.ismodule(value) else ()
        for owner in classes:
            for attribute, member in vars(owner).items():
                function = getattr(member, "fget", None) or getattr(member, "func", None)
                function = inspect.unwrap(function or getattr(member, "__func__", member))
                defined_here = getattr(function, "__module__", "") == getattr(owner, "__module__", owner.__name__)
                if inspect.isfunction(function) and defined_here and not attribute.startswith("_"):
                    yield f"{name}.{attribute}", function


def test_every_public_function_and_method_has_a_docstring():
    functions = [(name, function) for name, function in public_functions() if "alignup" in function.__module__]

    assert {"Host.decide", "Machine.kubelet_view", "Quantity.parse", "bits.show", "load_pods", "explain.why"} <= set(
        dict(functions)
    )
    assert [name for name, function in functions if not inspect.getdoc(function)] == []


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
        pytest.param("import alignup; alignup.explain.why; alignup.picture.svg", id="explanations and pictures"),
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

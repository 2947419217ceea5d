import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ConfigurationError, ParseError, SettingsError
from alignup.kubernetes.configuration import Configuration, Duration, StartupStage, read, unwrap
from alignup.kubernetes.configuration.fields import FIELDS

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
FIELD_SETS = {
    "topologyManagerPolicy": st.sampled_from(["", "none", "best-effort", "restricted", "single-numa-node"]),
    "topologyManagerScope": st.sampled_from(["", "container", "pod"]),
    "topologyManagerPolicyOptions": st.dictionaries(st.text(), st.text(), max_size=2),
    "cpuManagerPolicy": st.text(),
    "cpuManagerPolicyOptions": st.dictionaries(st.text(), st.text(), max_size=2),
    "cpuManagerReconcilePeriod": st.sampled_from(["0s", "10s", "-1.5s", "1h1m", "100ms"]),
    "memoryManagerPolicy": st.text(),
    "reservedMemory": st.just([{"numaNode": 0, "limits": {"memory": "100Mi"}}]),
    "reservedSystemCPUs": st.sampled_from(["", "0", "0-1,3"]),
    "systemReserved": st.dictionaries(st.text(), st.text(), max_size=2),
    "kubeReserved": st.dictionaries(st.text(), st.text(), max_size=2),
    "enforceNodeAllocatable": st.sampled_from([[], ["pods"], ["none"]]),
    "evictionHard": st.dictionaries(st.text(), st.text(), max_size=2),
    "mergeDefaultEvictionSettings": st.booleans(),
    "maxPods": st.integers(0, 1000),
    "podsPerCore": st.integers(0, 1000),
    "localStorageCapacityIsolation": st.booleans(),
    "featureGates": st.dictionaries(
        st.sampled_from(["AllBeta", "MemoryQoS", "PodLevelResourceManagers"]), st.just(True)
    ),
    "logging": st.just({"verbosity": 3}),
    "authentication": st.just({"webhook": {"cacheTTL": "2m"}}),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def document(**fields):
    return json.dumps({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **fields})


def load_error(text, **names):
    with pytest.raises(ConfigurationError) as raised:
        read(text, **names)
    return raised.value


def test_a_file_without_fields_means_defaults():
    assert read(HEAD) == Configuration()
    assert read(document()) == Configuration()


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        pytest.param("", "", 'kubelet config file "node-7.yaml" was empty', id="an empty file"),
        pytest.param(b"", "", 'kubelet config file "node-7.yaml" was empty', id="no bytes"),
        pytest.param("# nothing\n", "kind", "Object 'Kind' is missing in \"# nothing\\n\"", id="only a comment"),
        pytest.param("---\n", "kind", "Object 'Kind' is missing in \"---\\n\"", id="only a separator"),
        pytest.param(b" \n\n", "kind", "Object 'Kind' is missing in \" \\n\\n\"", id="only white space"),
        pytest.param("---\n---\n" + HEAD, "kind", "is missing", id="an empty first document"),
        pytest.param("- a\n", "", "must be an object, not a list", id="a list"),
        pytest.param("apiVersion: v1\n", "kind", "is missing", id="no kind"),
        pytest.param("kind: KubeletConfiguration\n", "apiVersion", "is missing", id="no version"),
        pytest.param("kind: 5\n", "kind", "must be a string, not a number", id="a number as kind"),
        pytest.param("apiVersion: v1\nkind: Pod\n", "kind", 'no kind "Pod"', id="another kind"),
        pytest.param(
            HEAD.replace("v1beta1", "v1"), "apiVersion", "kubelet.config.k8s.io/v1beta1", id="another version"
        ),
        pytest.param(HEAD + "a: [\n", "", "line ", id="broken YAML"),
        pytest.param("{kind: KubeletConfiguration}", "", "starts like JSON", id="YAML that starts like JSON"),
        pytest.param(document() + "{}", "", "starts like JSON", id="two JSON documents"),
        pytest.param(document(maxPods=float("nan")), "", "starts like JSON", id="not a JSON number"),
        pytest.param(HEAD.encode() + b"\xff", "", "UTF-8", id="invalid UTF-8"),
    ],
)
def test_other_texts_are_not_loaded(text, field, message):
    error = load_error(text, name="node-7.yaml")

    (problem,) = error.problems
    assert (error.stage, error.source, problem.field) == (StartupStage.LOAD, "node-7.yaml", field)
    assert message in problem.message
    assert isinstance(error, SettingsError)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        pytest.param("systemReserved", {"cpu": 1}, "systemReserved[cpu]", id="a number as quantity"),
        pytest.param("evictionHard", [], "evictionHard", id="a list as object"),
        pytest.param("featureGates", {"NodeSwap": "true"}, "featureGates[NodeSwap]", id="a string as boolean"),
        pytest.param("enforceNodeAllocatable", "pods", "enforceNodeAllocatable", id="a string as list"),
        pytest.param("enforceNodeAllocatable", ["pods", 1], "enforceNodeAllocatable[1]", id="a number in a list"),
        pytest.param("maxPods", 1 << 31, "maxPods", id="more than 32 bits"),
        pytest.param("reservedMemory", [{"numaNode": "0"}], "reservedMemory[0].numaNode", id="a quoted node"),
        pytest.param(
            "reservedMemory",
            [{"limits": {"memory": "1Qi"}}],
            "reservedMemory[0].limits[memory]",
            id="an invalid quantity",
        ),
        pytest.param(
            "reservedMemory",
            [{"limits": {"memory": "1Gi\n"}}],
            "reservedMemory[0].limits[memory]",
            id="a quantity with an escape",
        ),
        pytest.param("cpuManagerReconcilePeriod", None, "cpuManagerReconcilePeriod", id="null as duration"),
        pytest.param("authentication", {"webhook": {"enabled": 1}}, "authentication.webhook.enabled", id="nested"),
        pytest.param("memoryThrottlingFactor", "0.9", "memoryThrottlingFactor", id="a string as float"),
    ],
)
def test_a_value_of_the_wrong_type_is_not_loaded(field, value, path):
    error = load_error(document(**{field: value}))

    assert error.stage == StartupStage.LOAD
    assert [problem.field for problem in error.problems] == [path]
    assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"topologyManagerPolicy": None, "maxPods": None}, Configuration(), id="null means the default"),
        pytest.param(
            {"systemReserved": {"cpu": None}}, Configuration(system_reserved={"cpu": ""}), id="null in an object"
        ),
    ],
)
def test_null(fields, expected):
    """Vectors have the other defaults: ``../../conformance/test_configuration.py``."""
    configuration = read(document(**fields))

    assert configuration == Configuration(
        **{name: getattr(expected, name) for name in expected.__slots__ if name not in {"given", "source"}},
        given=frozenset(name for name, value in fields.items() if value is not None),
    )


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        pytest.param(
            "reservedCPUs: '0'\n", ['"reservedCPUs"', "did you mean reservedSystemCPUs?"], id="a misspelled field"
        ),
        pytest.param("TopologyManagerPolicy: none\n", ["did you mean topologyManagerPolicy?"], id="wrong case"),
        pytest.param("qwertz: 1\n", ['the kubelet ignores unknown field "qwertz"'], id="an unknown field"),
        pytest.param("reservedMemory: [{limit: {}}]\n", ['"reservedMemory[0].limit"'], id="inside a list"),
        pytest.param("maxPods: 1\nmaxPods: 2\n", ['line 4: duplicate key "maxPods"'], id="a duplicate key"),
    ],
)
def test_ignored_fields_give_a_warning(text, warnings):
    configuration = read(HEAD + text)

    (shown,) = configuration.warnings
    assert all(part in shown for part in warnings)


def test_warnings_are_limited():
    configuration = read(document(**{f"x{number}" * 1000: 1 for number in range(1000)}))

    assert configuration.warnings[-1] == "the kubelet ignores 900 more unknown fields"
    assert sum(map(len, configuration.warnings)) < 100_000


def test_an_error_is_a_single_line():
    error = load_error(document(featureGates={"a\nb": True}))

    assert error.problems[0].message == "unrecognized feature gate: a\nb"
    assert str(error) == "unrecognized feature gate: a\\nb"


def test_the_last_of_duplicate_keys_wins():
    yaml = read(HEAD + "maxPods: 1\nmaxPods: 2\n")
    twice = read(document(maxPods=1)[:-1] + ', "maxPods": 2}')

    assert (yaml.max_pods, twice.max_pods) == (2, 2)
    assert twice.warnings == ('duplicate key "maxPods": the last value is used',)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("---\nkind: Pod\n", id="another document"),
        pytest.param("---\na: [\n", id="a broken document"),
        pytest.param("...\n---\na: b: c\n", id="a broken document after an end"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_only_the_first_document_is_read(rest, encoding):
    assert read((HEAD + "maxPods: 7\n" + rest).encode(encoding)).max_pods == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("maxPods", -1),
        ("topologyManagerPolicy", "Restricted"),
        ("topologyManagerScope", "node"),
        ("enforceNodeAllocatable", ["pods", "pods"]),
        ("cgroupsPerQOS", False),
        ("reservedSystemCPUs", "2-1"),
        ("reservedMemory", [{"limits": {"memory": 0}}]),
    ],
)
def test_validation_names_the_field(field, value):
    """Vectors have the messages: ``../../conformance/test_configuration.py``."""
    error = load_error(document(**{field: value}))

    (problem,) = error.problems
    assert (error.stage, problem.field) == (StartupStage.VALIDATION, field)
    assert str(error) == problem.message


def test_validation_reports_every_problem_once():
    error = load_error(
        document(
            maxPods=-1, podsPerCore=-2, enforceNodeAllocatable=["system-reserved", "x", "system-reserved-compressible"]
        )
    )

    assert [problem.field for problem in error.problems] == [
        "maxPods",
        "podsPerCore",
        "enforceNodeAllocatable",
        "systemReservedCgroup",
        "enforceNodeAllocatable",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("0", "0s", id="zero without a unit"),
        pytest.param("+90s", "1m30s", id="seconds become minutes"),
        pytest.param("1h15m30.918273645s", "1h15m30.918273645s", id="all units"),
        pytest.param("1500us", "1.5ms", id="microseconds become milliseconds"),
        pytest.param("2µs", "2µs", id="micro sign"),
        pytest.param("3ns", "3ns", id="nanoseconds"),
        pytest.param(".5m", "30s", id="no digit before the point"),
        pytest.param("2562047h47m16.854775807s", "2562047h47m16.854775807s", id="the longest"),
    ],
)
def test_durations(text, shown):
    assert str(Duration.parse(text)) == shown
    assert Duration.parse(shown) == Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", 'time: invalid duration ""', id="empty"),
        pytest.param(".s", 'time: invalid duration ".s"', id="only a point"),
        pytest.param("1 s", 'time: unknown unit " s" in duration "1 s"', id="a space"),
        pytest.param("2562047h47m16.854775808s", 'time: invalid duration "2562047h47m16.854775808s"', id="too long"),
        pytest.param("9" * 5000 + "h", f'time: invalid duration "{"9" * 5000}h"', id="far too long"),
    ],
)
def test_invalid_durations(text, message):
    with pytest.raises(ParseError) as raised:
        Duration.parse(text)

    assert str(raised.value) == message


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1).map(Duration))
def test_durations_parse_as_they_print(duration):
    assert Duration.parse(str(duration)) == duration


@given(st.fixed_dictionaries({}, optional=FIELD_SETS))
def test_any_valid_fields_are_accepted(fields):
    configuration = read(document(**fields))

    assert configuration.given == set(fields)
    assert configuration.warnings == ()


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), JSON, max_size=3))
def test_any_value_in_any_field_is_accepted_or_rejected(fields):
    try:
        configuration = read(document(**fields))
    except ConfigurationError as error:
        assert error.problems
        assert error.stage in {StartupStage.LOAD, StartupStage.DEFAULTING_PANIC, StartupStage.VALIDATION}
    else:
        assert isinstance(configuration, Configuration)


@given(st.text() | st.binary())
def test_any_other_text_is_rejected(text):
    with pytest.raises(ConfigurationError) as raised:
        read(text)

    assert raised.value.stage == StartupStage.LOAD


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        pytest.param("topologyManagerPolicy=restricted", "topologyManagerPolicy", "restricted", id="a text"),
        pytest.param("maxPods=12", "maxPods", 12, id="a number"),
        pytest.param(
            "featureGates.PodLevelResources=false", "featureGates", {"A": True, "PodLevelResources": False}, id="a key"
        ),
        pytest.param("kubeReserved.cpu=1", "kubeReserved", {"cpu": "1"}, id="a key of a missing field"),
        pytest.param("reservedMemory=", "reservedMemory", None, id="nothing"),
    ],
)
def test_overrides_replace_fields(change, field, value):
    text = b"kind: KubeletConfiguration\nmaxPods: 5\nfeatureGates: {A: true}\n"

    document = json.loads(unwrap(text, name="a").override([change]).text)

    assert document[field] == value
    assert document["kind"] == "KubeletConfiguration"


@pytest.mark.parametrize("change", ["maxPods", "=1", ".=1"])
def test_an_override_without_field_or_value_is_an_error(change):
    with pytest.raises(ParseError, match="no value"):
        unwrap(b"kind: KubeletConfiguration\n", name="a").override([change])


@pytest.mark.parametrize("text", [b"", b"# nothing\n", b"---\n---\n" + HEAD.encode()])
def test_overrides_do_not_fill_an_empty_file(text):
    source = unwrap(text, name="a")

    assert source.override(["maxPods=7"]) == source


def test_a_text_that_breaks_off_after_a_list_is_not_taken_for_empty():
    """TOML, as of Bottlerocket: its first line is a list in YAML."""
    with pytest.raises(ConfigurationError) as raised:
        read('[settings.kubernetes]\ncpu-manager-policy = "static"\n')

    (problem,) = raised.value.problems
    assert "empty" not in problem.message
    assert problem.line == 2

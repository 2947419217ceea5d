"""Dashboards and alerts use metrics that the programs export, and every alert has a section of the runbooks."""

import asyncio
import itertools
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import jsonschema_rs
import pytest
import yaml
from prometheus_client import CollectorRegistry

from alignup.agent.metrics import Metrics
from alignup.nri.metrics import NriMetrics
from alignup.observe.app import ObserverMetrics
from alignup.observe.observation import join
from alignup.observe.published_objects import numa_amounts
from alignup.schedule.service import VERBS
from alignup.web.metrics import metrics_lines
from tests.agent.fake_backend import GPU, host
from tests.align.hosts import pod
from tests.console_runner import ROOT
from tests.deploy.chart import CHART, render_chart
from tests.deploy.manifests import (
    BASE,
    KUBERNETES,
    NRI_DECIDE,
    SCHEDULE,
    SCHEDULER,
    find_program,
    of_kind,
    read_documents,
    read_kustomization,
)
from tests.deploy.promql import RATES, Query, parse
from tests.observe.kubelets import ObservedKubelet
from tools.reference import schedule_service

DASHBOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "deploy" / "grafana").glob("*.json")}
RULES_FILE = ROOT / "deploy" / "prometheus" / "rules.yaml"
KUBELET_RULES_FILE = RULES_FILE.with_name("kubelet-rules.yaml")
RULES = [
    rule
    for file in (RULES_FILE, KUBELET_RULES_FILE)
    for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
PLACEHOLDER = "https://alignup.example.com"
PROMTOOL = find_program("promtool")
PROGRAMS = ("schedule", "scheduler", "nri")
MONITORED = {**{name: {"enabled": True} for name in PROGRAMS}, "monitoring": {"podMonitors": True}}

TARGET_LABELS = {"instance", "job"}  #: which Prometheus adds to every sample
UNITS = ("_seconds", "_bytes")
ABBREVIATIONS = {
    *("s", "ms", "us", "ns", "sec", "min", "minutes", "hours", "days", "percent"),
    *("b", "kb", "mb", "gb", "kib", "mib"),
}
#: of the kubelet's names, which the agent keeps: units that are no base units, and counters without ``_total``
UNUSUAL = {
    "kubelet_topology_manager_admission_duration_ms",
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "kubelet_container_aligned_compute_resources_count",
    "kubelet_container_aligned_compute_resources_failure_count",
    *(
        f"kubelet_pod_resources_endpoint_{kind}_{method}"
        for kind in ("requests", "errors")
        for method in ("list", "get_allocatable", "get")
    ),
}
#: Labels whose values have no bound.
UNBOUNDED = {"pod", "pod_name", "namespace", "container", "uid", "id", "user", "path", "message", "error", "address"}


@dataclass
class Exported:
    """All samples of one name."""

    type: str
    values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  #: by label


def registries() -> Iterator[CollectorRegistry]:
    """The metrics of every program, with at least one value each."""
    machine = host()
    agent = Metrics(lambda: machine)
    too_wide = pod("wide", cpu="12", memory="1Gi")
    agent.decided(machine.admit(too_wide), pod=too_wide, seconds=0.001)
    agent.count_registration(GPU)
    agent.observe_allocation(GPU, 0.1)
    for method, failed in itertools.product(("list", "get_allocatable", "get"), (False, True)):
        agent.count_pod_resources(method, failed=failed)
    agent.show_dropped_log_lines(lambda: 0)
    yield agent.registry
    observer = ObserverMetrics("host-a")
    observation = join(ObservedKubelet().sources())
    observer.state(gaps=0, contradictions=0, amounts=numa_amounts(observation.host))
    observer.published(seconds=0.1, sizes={"hoststates": 1})
    yield observer.registry
    yield NriMetrics().registry
    service = asyncio.run(schedule_service())
    for verb in VERBS:
        service.metrics.request(verb, 200, 0.001)
    yield service.metrics.registry


@pytest.fixture(scope="module")
def exported() -> dict[str, Exported]:
    """Every sample that a program of Alignup exports, by name, and what Prometheus adds."""
    samples = {"up": Exported("gauge")}
    for registry in registries():
        shown = "".join(metrics_lines(registry))
        for family in registry.collect():
            for sample in family.samples:
                assert re.search(rf"^{sample.name}[ {{]", shown, re.MULTILINE) or sample.name.endswith("_created")
                known = samples.setdefault(sample.name, Exported(family.type))
                for label, value in sample.labels.items():
                    known.values[label].add(value)
    return samples


def panels() -> Iterator[tuple[str, dict]]:
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            yield f"{name}: {panel['title']}", panel


def queries() -> Iterator[tuple[str, str, set[str]]]:
    """Yield every expression with its place, and the labels that its legend or annotations show."""
    for place, panel in panels():
        for target in panel["targets"]:
            yield place, target["expr"], set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    for rule in RULES:
        yield rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))


def problems(query: Query, shown: set[str], exported: dict[str, Exported]) -> Iterator[str]:
    known: set[str] = set()
    for selector in query.selectors:
        sample = exported.get(selector.metric)
        if sample is None:
            yield f"no program exports {selector.metric}"
            continue
        known |= sample.values.keys() | TARGET_LABELS
        for matcher in selector.matchers:
            if matcher.label not in sample.values.keys() | TARGET_LABELS:
                yield f"{selector.metric} has no label {matcher.label}"
            elif matcher.label not in TARGET_LABELS and set(matcher.values) - sample.values[matcher.label]:
                yield f"{matcher.label} of {selector.metric} is never {matcher.value}"
        if selector.ranged != (selector.function in RATES):
            yield f"{selector.metric} needs a range exactly as the argument of {' or '.join(RATES)}"
        if (sample.type in {"counter", "histogram"}) != (selector.function in RATES):
            yield f"{selector.metric} is a {sample.type}"
    for group in query.groups:
        yield from (f"no metric has a label {label}" for label in set(group) - known)
    left = set(query.groups[0]) if query.groups else set() if query.aggregations else known
    yield from (f"label {label} is not in the result" for label in shown - left)


def test_queries_use_what_the_programs_export(exported):
    assert [
        f"{place}: {problem}"
        for place, expression, shown in queries()
        for problem in problems(parse(expression), shown, exported)
    ] == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("alignup_schedule_node", "no program exports alignup_schedule_node"),
        ('alignup_gate_pods{status="queued"}', "alignup_gate_pods has no label status"),
        ('alignup_gate_pods{state=~"queued|asleep"}', "state of alignup_gate_pods is never queued|asleep"),
        ("max by (zone) (alignup_gate_pods)", "no metric has a label zone"),
        ("sum(alignup_prediction_total)", "alignup_prediction_total is a counter"),
        ("rate(alignup_gate_pods[5m])", "alignup_gate_pods is a gauge"),
        ("increase(alignup_prediction_total)", "alignup_prediction_total needs a range"),
        ("rate(alignup_gate_wait_seconds[5m])", "no program exports alignup_gate_wait_seconds"),
        ("sum(alignup_gate_pods)", "label state is not in the result"),
    ],
)
def test_mistakes_in_queries_are_detected(expression, problem, exported):
    detected = list(problems(parse(expression), {"state"}, exported))

    assert any(text.startswith(problem) for text in detected), detected


@pytest.mark.parametrize(
    "expression",
    ["", "1", "sum(up", "up)", "up{job}", 'up{job="a"', "up[5x]", "sum by job (up)", "avg(up)", "up offset 5m", "up$x"],
)
def test_other_expressions_are_errors(expression):
    with pytest.raises(ValueError, match=r"unknown|unexpected|not a"):
        parse(expression)


def test_histograms_are_used_by_their_buckets():
    for place, expression, _ in queries():
        query = parse(expression)
        buckets = any(selector.metric.endswith("_bucket") for selector in query.selectors)
        assert ("histogram_quantile" in expression) == buckets, place
        assert not buckets or all("le" in group for group in query.groups), place


def test_variables_of_dashboards_exist(exported):
    for dashboard in DASHBOARDS.values():
        text = json.dumps(dashboard)
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == variables.keys()
        assert variables["datasource"]["type"] == "datasource"
        for variable in variables.values():
            if variable["type"] == "query":
                ((metric, label),) = re.findall(r"^label_values\((\w+), (\w+)\)$", variable["query"]["query"])
                assert metric in exported
                assert label in exported[metric].values.keys() | TARGET_LABELS


def test_dashboards_refer_to_nothing_of_an_instance():
    assert set(DASHBOARDS) == {"node", "cluster"}
    for name, dashboard in DASHBOARDS.items():
        assert (dashboard["uid"], dashboard.get("id"), dashboard["schemaVersion"]) == (f"alignup-{name}", None, 42)
        targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
        variables = [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
        assert {item["datasource"]["uid"] for item in (*dashboard["panels"], *targets, *variables)} == {"${datasource}"}


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_panels_have_a_place_of_their_own_and_say_what_they_show(name):
    panels = DASHBOARDS[name]["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_units_of_panels_are_those_of_the_metrics():
    for place, panel in panels():
        unit, text = panel["fieldConfig"]["defaults"]["unit"], panel["targets"][0]["expr"]
        expected = "s" if "_seconds_bucket" in text else "bytes" if "_bytes" in text else "ms" if "_ms_" in text else ""
        assert unit == expected if expected else unit not in {"s", "ms", "bytes"}, place
        assert (unit == "percentunit") == (" / " in text), place


def test_every_alert_has_a_section_of_the_runbooks_and_the_other_way_round():
    alerts = [rule["alert"] for rule in RULES]
    sections = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1:]

    assert len(set(alerts)) == len(alerts)
    assert sorted(section.split("\n", 1)[0] for section in sections) == sorted(alerts)
    for section in sections:
        assert re.findall(r"^\*\*([^*]+)\*\*", section, re.MULTILINE) == ["Meaning.", "Look.", "Do."]


def test_runbooks_name_panels_and_values_of_labels_that_exist(exported):
    titles = {panel["title"] for _, panel in panels()}
    named = set(re.findall(r"panel \"([^\"]+)\"", " ".join(RUNBOOKS.split())))
    values = {value for sample in exported.values() for known in sample.values.values() for value in known}
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", RUNBOOKS))

    assert len(named) > 3
    assert named <= titles
    assert words >= {"foreign_pod", "not_scheduled"}
    assert words - {"alignup"} <= values  # which is a namespace


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_say_what_is_wrong_and_where_to_read_on(rule):
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{PLACEHOLDER}/docs/runbooks.html#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["alert"].startswith(("Alignup", "Kubelet"))


def test_alerts_about_kubelets_need_no_metrics_of_ours():
    expressions = [rule["expr"] for rule in RULES if rule["alert"].startswith("Kubelet")]

    assert len(expressions) == 4
    assert [text for text in expressions if "alignup" in text] == []


def test_counters_that_alerts_are_about_exist_before_their_first_event(exported):
    """``increase`` does not see an event that begins a series."""
    assert exported["alignup_prediction_total"].values["cause"] >= {"", "unexplained", "foreign_pod"}
    assert exported["alignup_gate_releases_total"].values["outcome"] >= {"bound", "not_scheduled", "refused"}
    assert exported["alignup_observer_writes_total"].values["result"] == {"ok", "error"}


def name_problems(name: str, kind: str, labels: set[str], text: str) -> Iterator[str]:
    """What the linter of Prometheus, and its guide to names, say about a metric."""
    words = name.split("_")
    if not re.fullmatch(r"(alignup|kubelet)(_[a-z0-9]+)+", name):
        yield "no prefix of a program, or characters other than lower case"
    if not text:
        yield "no help"
    if name.endswith("_total") != (kind == "counter"):
        yield "counters end with _total, and nothing else does"
    if kind not in {"histogram", "summary"} and words[-1] in {"count", "sum", "bucket"}:
        yield "the suffix of a histogram or summary"
    if kind == "histogram" and not name.endswith(UNITS):
        yield "no unit"
    if set(words) & {"counter", "gauge", "histogram", "summary", "untyped"}:
        yield "the type is in the name"
    if set(words) & ABBREVIATIONS or any(re.match("(milli|micro|nano|kilo|mega)", word) for word in words):
        yield "no base unit, or an abbreviated one"
    if any(f"_by_{label}" in name for label in labels):
        yield "a label is in the name"
    yield from (f"reserved label {label}" for label in labels & {"le", "quantile"})
    yield from (f"label {label}" for label in labels if not re.fullmatch(r"[a-z]+(_[a-z]+)*", label))
    yield from (f"unbounded label {label}" for label in labels & UNBOUNDED)


@pytest.mark.parametrize(
    ("name", "kind", "labels", "text"),
    [
        ("pods", "gauge", set(), "Pods."),
        ("alignup_pods", "counter", set(), "Pods."),
        ("alignup_pods_total", "gauge", set(), "Pods."),
        ("alignup_pods", "gauge", set(), ""),
        ("alignup_pods_count", "gauge", set(), "Pods."),
        ("alignup_wait", "histogram", set(), "Waiting."),
        ("alignup_wait_histogram_seconds", "histogram", set(), "Waiting."),
        ("alignup_wait_ms", "gauge", set(), "Waiting."),
        ("alignup_wait_milliseconds", "gauge", set(), "Waiting."),
        ("alignup_pods_by_reason", "gauge", {"reason"}, "Pods."),
        ("alignup_pods", "gauge", {"le"}, "Pods."),
        ("alignup_pods", "gauge", {"podReason"}, "Pods."),
        ("alignup_pods", "gauge", {"uid"}, "Pods."),
        ("alignup_podsWaiting", "gauge", set(), "Pods."),
    ],
)
def test_mistakes_in_names_are_detected(name, kind, labels, text):
    assert len(list(name_problems(name, kind, labels, text))) == 1


def test_names_follow_the_rules_of_prometheus(exported):
    for registry in registries():
        for family in registry.collect():
            shown = family.samples[0].name if family.samples else f"{family.name}_total"
            name = shown if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels if label != "le"}
            assert family.documentation.endswith("."), name
            assert name in UNUSUAL or list(name_problems(name, family.type, labels, family.documentation)) == [], name
            assert not labels & UNBOUNDED, name
    assert {sample.removesuffix("_bucket") for sample in exported} >= UNUSUAL


def test_pod_monitors_select_the_metrics_of_every_program():
    monitors = read_kustomization(KUBERNETES / "monitoring")
    directories = (BASE, SCHEDULE, SCHEDULER, NRI_DECIDE)
    objects = [manifest for directory in directories for manifest in read_kustomization(directory)]
    rendered = render_chart(MONITORED)

    assert of_kind(rendered, "PodMonitor") == monitors
    for workload in of_kind(objects, "DaemonSet", "Deployment"):
        template = workload["spec"]["template"]
        (monitor,) = (
            monitor
            for monitor in monitors
            if monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        )
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert endpoint["port"] in ports
        assert monitor["metadata"]["name"] == workload["metadata"]["name"]
        assert monitor["metadata"]["namespace"] == workload["metadata"]["namespace"]


def test_pod_monitors_are_of_programs_that_run():
    names = [
        [item["metadata"]["name"] for item in of_kind(render_chart(values), "PodMonitor")]
        for values in ({}, {"monitoring": {"podMonitors": True}})
    ]

    assert names == [[], ["alignup-observer"]]


def test_the_chart_has_the_rules_with_links_to_a_copy_of_the_documentation():
    values = {"rules": True, "labels": {"release": "prometheus"}, "documentation": "https://docs.example.org/numa"}
    (rule,) = of_kind(render_chart({"monitoring": values}, namespace="numa"), "PrometheusRule")
    text = RULES_FILE.read_text("utf-8").replace(PLACEHOLDER, "https://docs.example.org/numa")

    assert (CHART / "rules.yaml").resolve() == RULES_FILE
    assert rule["spec"] == yaml.safe_load(text)
    assert rule["metadata"]["namespace"] == "numa"
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert not of_kind(render_chart(), "PrometheusRule")


@pytest.mark.parametrize("values", [{"rules": "yes"}, {"documentation": "docs"}, {"labels": {"a": 1}}], ids=str)
def test_the_schema_refuses_mistakes_in_monitoring(values):
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    (defaults,) = read_documents((CHART / "values.yaml").read_text("utf-8"))

    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**defaults, "monitoring": {**defaults["monitoring"], **values}})


@pytest.mark.skipif(PROMTOOL is None, reason="not installed: promtool")
def test_promtool_accepts_the_rules():
    words = [PROMTOOL or "", "check", "rules", str(RULES_FILE), str(KUBELET_RULES_FILE)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)  # noqa: S603

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="not installed: promtool")
def test_promtool_accepts_every_query(tmp_path):
    """As rules, since promtool checks no other expressions."""
    variables = {"$__rate_interval": "5m", "$__range": "1h"}
    rules = []
    for number, (_, expression, _) in enumerate(queries()):
        for name, value in variables.items():
            expression = expression.replace(name, value)  # noqa: PLW2901
        rules.append({"record": f"query:{number}", "expr": expression})
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    done = subprocess.run([PROMTOOL or "", "check", "rules", str(file)], check=False, capture_output=True, text=True)  # noqa: S603

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.skipif(PROMTOOL is None, reason="not installed: promtool")
def test_promtool_accepts_the_metrics():
    """Only names of the kubelet are unusual."""
    for registry in registries():
        words = [PROMTOOL or "", "check", "metrics"]
        text = "".join(metrics_lines(registry))
        done = subprocess.run(words, check=False, capture_output=True, text=True, input=text)  # noqa: S603
        named = {line.split(" ")[0] for line in (done.stdout + done.stderr).splitlines() if line}
        assert named <= UNUSUAL, done.stdout + done.stderr

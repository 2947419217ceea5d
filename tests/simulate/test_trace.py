import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import AlignError, TraceError
from alignup.align.workload.validation import accept
from alignup.simulate.arrivals import GANG_LABEL, PodArrival, PodDeparture
from alignup.simulate.trace import read, read_bytes, read_file, write
from tests.align.hosts import GPU
from tests.simulate.workloads import small, some, workloads
from tests.strategies_pods import guaranteed

YAML = """
apiVersion: alignup.dev/v1
kind: Trace
templates:
  web: {requests: {cpu: 2, memory: 1Gi}}
  trainer:
    pod:
      apiVersion: v1
      kind: Pod
      metadata: {labels: {app: trainer}}
      spec:
        containers:
        - name: main
          resources: {limits: {cpu: "4", memory: 8Gi, example.com/gpu: 1}}
events:
- {at: 0, arrive: web-1, template: web, lifetime: 300}
- {at: 2.5, arrive: web-2, template: web, requests: {cpu: 4}}
- {at: 10, arrive: db, namespace: prod, requests: {cpu: 8, memory: 32Gi}}
- {at: 30, leave: web-2}
---
at: 20
pod:
  apiVersion: v1
  kind: Pod
  metadata: {name: whole, namespace: prod}
  spec: {containers: [{name: app, resources: {requests: {cpu: 500m}}}]}
lifetime: 60
---
{at: 40, arrive: trainer-1, uid: abc, template: trainer}
"""

HEADER = (
    '{"apiVersion": "alignup.dev/v1", "kind": "Trace", "templates": {"web": {"requests": {"cpu": 2, "memory": "1Gi"}}}}'
)


def test_events_are_sorted_by_time():
    events = read(YAML)

    assert [(event.time, event.pod.uid if isinstance(event, PodArrival) else event.uid) for event in events] == [
        (0, "web-1"),
        (2.5, "web-2"),
        (10, "prod/db"),
        (20, "prod/whole"),
        (30, "web-2"),
        (40, "abc"),
        (80, "prod/whole"),
        (300, "web-1"),
    ]


def pods_of(events):
    return {event.pod.uid: event.pod for event in events if isinstance(event, PodArrival)}


def test_requests_make_a_guaranteed_pod_with_one_container():
    (event,) = read(f'{HEADER}\n{{"at": 0, "arrive": "a", "requests": {{"cpu": 2, "memory": "1Gi"}}}}')

    assert event == PodArrival(0, accept(replace(small("a"), uid="a")))


def test_requests_override_a_template():
    web_2 = pods_of(read(YAML))["web-2"]

    assert str(web_2.qos) == "Guaranteed"
    assert web_2.containers[0].resources.whole_cpus == 4
    assert web_2.containers[0].resources.memory == {"memory": 1 << 30}


def test_a_template_may_be_a_whole_pod():
    trainer = pods_of(read(YAML))["abc"]

    assert (trainer.name, trainer.labels) == ("trainer-1", {"app": "trainer"})
    assert trainer.containers[0].resources.requests[GPU].value() == 1


def test_a_lifetime_is_exact():
    events = read(f'{HEADER}\n{{"at": 0.1, "arrive": "a", "template": "web", "lifetime": 0.2}}')

    assert events[1] == PodDeparture(0.3, "a")


@some
@given(workloads())
def test_traces_round_trip(events):
    text = io.StringIO()

    write(events, text)

    assert read(text.getvalue()) == events
    assert read(text.getvalue().encode()) == events


def test_equal_pods_share_a_template():
    text = io.StringIO()
    labeled = replace(small("c"), containers=(guaranteed("main", {"cpu": "1", "memory": "1Gi"}),), labels={"app": "db"})
    write([PodArrival(0, small("a")), PodArrival(1, small("b")), PodDeparture(5, "a"), PodArrival(2, labeled)], text)

    head, *lines = map(json.loads, text.getvalue().splitlines())

    assert head["templates"]["pod-1"] == {"requests": {"cpu": "2", "memory": "1Gi"}}
    assert list(head["templates"]) == ["pod-1", "db-2"]
    assert lines == [
        {"at": 0, "arrive": "a", "template": "pod-1", "lifetime": 5},
        {"at": 1, "arrive": "b", "template": "pod-1"},
        {"at": 2, "arrive": "c", "template": "db-2"},
    ]


def with_event(**event: object) -> str:
    return f"{HEADER}\n{json.dumps({'at': 0, **event})}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "t.json: not a trace: it must start with", id="empty"),
        pytest.param("kind: Pod", "t.json:1: apiVersion: must be alignup.dev/v1, not null", id="another kind"),
        pytest.param("- 1", "t.json:1: must be an object, not a list", id="a list"),
        pytest.param("a: [", "t.json:", id="invalid YAML"),
        pytest.param(f"{HEADER}\n{{", "t.json:2: ", id="invalid JSON"),
        pytest.param(f'{HEADER}\n{{"at": 1, "at": 2}}', "t.json:2: duplicate key at", id="a duplicate key"),
        pytest.param(
            HEADER[:-1] + ', "event": []}',
            "t.json:1: event: unknown field; expected one of apiV",
            id="an unknown field",
        ),
        pytest.param(
            HEADER[:-1] + ', "events": {}}', "t.json:1: events: must be a list, not an object", id="an object as events"
        ),
        pytest.param(with_event(), "t.json:2: an event must have one of arrive", id="an event without a kind"),
        pytest.param(
            with_event(leave="a", arrive="b"), "t.json:2: an event must have one of", id="an event of two kinds"
        ),
        pytest.param(
            with_event(leave="a", lifetime=1), "t.json:2: lifetime: unknown field", id="a lifetime of a departure"
        ),
        pytest.param(with_event(leave=7), "t.json:2: leave: must be a string, not a number", id="a number as name"),
        pytest.param(with_event(leave="a", at=-1), "t.json:2: at: -1 is not a time", id="a negative time"),
        pytest.param(with_event(leave="a", at="soon"), 't.json:2: at: "soon" is not a time', id="a string as time"),
        pytest.param(with_event(leave="a", at=None), "t.json:2: at: Required value", id="no time"),
        pytest.param(with_event(leave="a", at=True), "t.json:2: at: true is not a time", id="a boolean as time"),
        pytest.param(
            with_event(arrive="a", template="web", lifetime=0),
            "t.json:2: lifetime: 0 is too short",
            id="a zero lifetime",
        ),
        pytest.param(
            with_event(arrive="a"),
            "t.json:2: the arriving pod has neither a template nor requests",
            id="no template and no requests",
        ),
        pytest.param(
            with_event(arrive="a", template="wob"),
            "template: no template wob; the trace defines: web",
            id="an unknown template",
        ),
        pytest.param(
            with_event(arrive="A", template="web"), 'arrive: Invalid value: "A": must be', id="an invalid name"
        ),
        pytest.param(
            with_event(arrive="a", requests={"cpu": "2x"}),
            "requests[cpu]: not a quantity; write",
            id="an invalid quantity",
        ),
        pytest.param(
            with_event(arrive="a", requests={"cpu": None}),
            "requests[cpu]: Required value",
            id="null as quantity",
        ),
        pytest.param(
            with_event(arrive="a", requests={"hugepages-2Mi": "2Mi"}),
            "t.json:2: spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
            id="a pod that the API server rejects",
        ),
        pytest.param(
            with_event(pod={"apiVersion": "v1", "kind": "Pod"}),
            "t.json:2: pod: metadata.name: Required value",
            id="an empty pod",
        ),
        pytest.param(with_event(pod={"kind": "Job"}), "t.json:2: pod: ", id="another kind as pod"),
        pytest.param(with_event(pod=3), "t.json:2: pod: must be an object, not a number", id="a number as pod"),
        pytest.param(
            with_event(arrive="a", template="web") + '{"at": 1, "arrive": "a", "template": "web"}',
            "t.json:3: pod a arrives at 1 s but is present since 0 s",
            id="the same pod twice",
        ),
        pytest.param(
            HEADER.replace('{"requests"', '{"pod": {}, "requests"'),
            "templates.web: a template must have either",
            id="a template with a pod and requests",
        ),
        pytest.param(
            HEADER.replace('"requests"', '"limits"'),
            "templates.web.limits: unknown field",
            id="an unknown field of a template",
        ),
        pytest.param(
            HEADER.replace('"1Gi"', '"-1Gi"'),
            "templates.web: spec.containers[0]",
            id="a template that the API server rejects",
        ),
    ],
)
def test_errors_name_the_place(text, message):
    with pytest.raises(TraceError) as raised:
        read(text, file="t.json")

    assert message in str(raised.value)
    assert str(raised.value).startswith("t.json")
    assert "\n" not in str(raised.value)


def test_errors_have_the_place_as_attributes():
    with pytest.raises(TraceError) as raised:
        read(with_event(leave="a", at=-1), file="t.json")

    error = raised.value
    assert (error.file, error.line, error.field) == ("t.json", 2, "at")


def test_errors_in_the_list_of_events_name_the_index():
    with pytest.raises(TraceError, match=r"events\[1\].at: Required value"):
        read(HEADER[:-1] + ', "events": [{"at": 1, "leave": "a"}, {"leave": "b"}]}')


def test_files_are_read(tmp_path):
    path = tmp_path / "trace.yaml"
    path.write_text(YAML, encoding="utf-8")

    assert read_file(path) == read(YAML)


def test_an_unreadable_file_is_reported(tmp_path):
    with pytest.raises(TraceError, match=r"none\.yaml: cannot be read: No such file"):
        read_file(tmp_path / "none.yaml")


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_other_texts_are_rejected(text):
    with pytest.raises(AlignError):
        read(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda children: (
            st.lists(children)
            | st.dictionaries(
                st.sampled_from(["at", "arrive", "leave", "pod", "template", "requests", "lifetime", "uid", "cpu"]),
                children,
            )
        ),
        max_leaves=8,
    )
)
def test_any_event_is_read_or_rejected(event):
    try:
        read(f"{HEADER}\n{json.dumps(event)}")
    except AlignError as error:
        assert str(error)


class TestClusterFields:
    TEXT = """
apiVersion: alignup.dev/v1
kind: Trace
events:
- {at: 0, arrive: a, requests: {cpu: 1}, priority: 7, gang: g, nodeSelector: {pool: x, model: [v, w]}}
- {at: 0, gang: g, pod: {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {containers: [{name: c}]}}}
"""

    def test_gangs_priorities_and_selectors(self):
        first, second = (arrival for arrival in read(self.TEXT) if isinstance(arrival, PodArrival))

        assert first.pod.priority == 7
        assert first.selector == {"pool": ("x",), "model": ("v", "w")}
        assert {arrival.pod.labels[GANG_LABEL] for arrival in (first, second)} == {"g"}

    def test_they_are_written_again(self):
        events = read(self.TEXT)
        text = io.StringIO()
        write(events, text)

        assert read(text.getvalue()) == events
        assert '"gang": "g"' in text.getvalue()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "nested more than 100 levels deep", id="deep YAML"),
        pytest.param('{"a":' * 100_000, "nested more than 100 levels deep", id="deep JSON"),
        pytest.param(
            "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
            "more than 400,000 values and keys",
            id="aliases",
        ),
    ],
)
def test_a_hostile_trace_is_refused_in_words(text, message):
    with pytest.raises(TraceError, match=message):
        read(text)


def test_a_huge_trace_is_refused_before_it_is_parsed(tmp_path):
    (tmp_path / "trace").write_bytes(b"x" * 3)

    with pytest.raises(TraceError, match="larger than 0 MiB"):
        read_bytes(tmp_path / "trace", limit=2)

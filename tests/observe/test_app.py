"""The endpoints of the observer."""

from starlette.testclient import TestClient

from alignup.observe.app import ObserverMetrics, observer_app
from alignup.observe.published_objects import ResourceAmounts

AMOUNTS = {3: [ResourceAmounts("cpu", capacity=8, allocatable=7, available=2)]}


def client(*, alive=True, problems=()):
    metrics = ObserverMetrics("host-a")
    return TestClient(observer_app(metrics, alive=lambda: alive, problems=lambda: problems)), metrics


def test_health_and_readiness():
    well, _ = client()
    ill, _ = client(alive=False, problems=("the API server is away",))

    assert [well.get(path).status_code for path in ("/healthz", "/readyz", "/x")] == [200, 200, 404]
    assert ill.get("/healthz").status_code == 503
    assert (ill.get("/readyz").status_code, ill.get("/readyz").text) == (503, "the API server is away\n")


def test_metrics_show_what_was_observed_and_written():
    served, metrics = client()
    metrics.observations.labels("ok").inc()
    metrics.published(seconds=0.03, sizes={"hoststates": 900})
    metrics.writes.labels("error").inc()
    metrics.state(gaps=1, contradictions=2, amounts=AMOUNTS)

    text = served.get("/metrics").text

    for line in (
        'alignup_observer_observations_total{result="ok"} 1',
        'alignup_observer_writes_total{result="error"} 1',
        'alignup_observer_publish_delay_seconds_bucket{le="0.05"} 1',
        'alignup_observer_object_bytes{resource="hoststates"} 900',
        "alignup_observer_contradictions 2",
        'alignup_numa_node_resources{node="host-a",numa_node="3",resource="cpu",state="available"} 2',
    ):
        assert f"{line}\n" in text

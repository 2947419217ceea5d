"""Device plugin metrics, as Prometheus scrapes them."""

from alignup.agent.metrics import (
    ALLOCATION_BUCKETS,
    MAX_RESOURCES,
    OTHER,
    REGISTRATIONS,
    Metrics,
)
from alignup.web.metrics import metrics_lines
from tests.align.hosts import host

GPU = "example.com/gpu"


def text_of(metrics: Metrics) -> str:
    return "".join(metrics_lines(metrics.registry))


def test_metrics_have_the_names_labels_and_buckets_of_the_kubelet():
    metrics = Metrics(host)

    metrics.count_registration(GPU)
    metrics.count_registration(GPU)
    for seconds in (0.004, 0.005, 0.0051, 11.0):
        metrics.observe_allocation(GPU, seconds)
    metrics.count_pod_resources("get", failed=False)
    metrics.count_pod_resources("get", failed=True)

    lines = text_of(metrics).splitlines()
    name = "kubelet_device_plugin_alloc_duration_seconds"
    for line in (
        "# TYPE kubelet_device_plugin_registration_total counter",
        f'kubelet_device_plugin_registration_total{{resource_name="{GPU}"}} 2',
        f"# TYPE {name} histogram",
        f'{name}_bucket{{le="0.005",resource_name="{GPU}"}} 2',
        f'{name}_bucket{{le="10",resource_name="{GPU}"}} 3',
        f'{name}_bucket{{le="+Inf",resource_name="{GPU}"}} 4',
        f'{name}_count{{resource_name="{GPU}"}} 4',
        'kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 1',
        'kubelet_pod_resources_endpoint_requests_get{server_api_version="v1"} 1',
        'kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1',
    ):
        assert line in lines
    assert sum(line.startswith(f"{name}_bucket") for line in lines) == len(ALLOCATION_BUCKETS) + 1
    assert not any("requests_list" in line or "_created" in line for line in lines)


def test_metrics_without_values_are_left_out():
    metrics = Metrics(host)

    assert "plugin" not in text_of(metrics)


def test_resource_names_beyond_the_limit_share_a_series():
    metrics = Metrics(host)

    for number in range(MAX_RESOURCES + 50):
        metrics.count_registration(f"example.com/{number}")
    metrics.count_registration("example.com/0")

    (family,) = (family for family in metrics.registry.collect() if family.name == REGISTRATIONS)
    values = {sample.labels["resource_name"]: sample.value for sample in family.samples}
    assert (len(values), values[OTHER], values["example.com/0"]) == (MAX_RESOURCES + 1, 50, 2)

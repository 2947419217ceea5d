"""What is counted, as whoever collects metrics sees it."""

from typing import TYPE_CHECKING, cast

from alignup.plugins.metrics import BUCKETS, MAX_RESOURCES, OTHER, REGISTRATIONS, PluginMetrics
from alignup.serve.metrics import Metrics
from tests.align.hosts import host

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

GPU = "example.com/gpu"


def test_metrics_show_what_was_counted():
    tally, metrics = PluginMetrics(), Metrics(host)
    metrics.registry.register(cast("Collector", tally))

    tally.registered(GPU)
    tally.registered(GPU)
    for seconds in (0.004, 0.005, 0.0051, 11.0):
        tally.allocated(GPU, seconds)
    tally.asked("get")
    tally.failed("get")

    lines = metrics.text().decode().splitlines()
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
    assert sum(line.startswith(f"{name}_bucket") for line in lines) == len(BUCKETS) + 1
    assert not any("requests_list" in line for line in lines)


def test_names_without_end_are_counted_together():
    tally = PluginMetrics()

    for number in range(MAX_RESOURCES + 50):
        tally.registered(f"example.com/{number}")
    tally.registered("example.com/0")

    (family,) = tally.collect()
    values = {sample.labels["resource_name"]: sample.value for sample in family.samples}
    assert family.name == REGISTRATIONS
    assert (len(values), values[OTHER], values["example.com/0"]) == (MAX_RESOURCES + 1, 50, 2)

"""Device plugin metrics, as Prometheus scrapes them."""

from alignup.agent.metrics import (
    ALLOCATION_BUCKETS,
    MAX_RESOURCES,
    OTHER,
    REGISTRATIONS,
    DevicePluginMetrics,
    Metrics,
)
from tests.align.hosts import host

GPU = "example.com/gpu"


def test_metrics_have_the_names_labels_and_buckets_of_the_kubelet():
    metrics = Metrics(host)
    plugins = DevicePluginMetrics(metrics.registry)

    plugins.count_registration(GPU)
    plugins.count_registration(GPU)
    for seconds in (0.004, 0.005, 0.0051, 11.0):
        plugins.observe_allocation(GPU, seconds)
    plugins.count_request("get")
    plugins.count_error("get")

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
    assert sum(line.startswith(f"{name}_bucket") for line in lines) == len(ALLOCATION_BUCKETS) + 1
    assert not any("requests_list" in line or "_created" in line for line in lines)


def test_metrics_without_values_are_left_out():
    metrics = Metrics(host)
    DevicePluginMetrics(metrics.registry)

    assert b"plugin" not in metrics.text()


def test_resource_names_beyond_the_limit_share_a_series():
    plugins = DevicePluginMetrics(Metrics(host).registry)

    for number in range(MAX_RESOURCES + 50):
        plugins.count_registration(f"example.com/{number}")
    plugins.count_registration("example.com/0")

    (family,) = plugins.collect()
    values = {sample.labels["resource_name"]: sample.value for sample in family.samples}
    assert family.name == REGISTRATIONS
    assert (len(values), values[OTHER], values["example.com/0"]) == (MAX_RESOURCES + 1, 50, 2)

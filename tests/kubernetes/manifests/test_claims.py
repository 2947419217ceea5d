"""ResourceSlices, ResourceClaims, templates and DeviceClasses in manifests."""

import msgspec
import pytest

from alignup.align.claims.resource_claims import (
    AllocatedDevice,
    DeviceId,
    DeviceTaint,
    DeviceToleration,
    MatchAttribute,
)
from alignup.align.errors import ManifestError
from alignup.align.quantity import Quantity
from alignup.kubernetes.manifests import claims
from alignup.kubernetes.manifests.claims import ReadClaims, read_objects
from alignup.kubernetes.manifests.workloads import read_workloads

SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.example.com
  nodeName: node-a
  pool: {name: node-a, generation: 3, resourceSliceCount: 2}
  devices:
  - name: gpu-0
    attributes:
      model: {string: h100}
      index: {int: 0}
      linked: {bool: false}
      driverVersion: {version: 1.2.3}
      resource.kubernetes.io/numaNode: {int: 1}
      lanes: {ints: [1, 2]}
    capacity: {memory: {value: 80Gi}, cores: {value: 7}}
    taints:
    - {key: broken, value: "yes", effect: NoSchedule}
    - {key: seen, effect: None}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine, namespace: ml, uid: u-1}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu
        count: 2
        selectors: [{cel: {expression: "true"}}]
        tolerations: [{key: broken, operator: Exists}]
    - name: nic
      firstAvailable:
      - {name: fast, deviceClassName: fast-nic}
      - {name: any, deviceClassName: nic, allocationMode: All}
    constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot, requests: [gpu]}]
status:
  allocation:
    devices: {results: [{request: gpu, driver: gpu.example.com, pool: node-a, device: gpu-0}]}
    nodeSelector:
      nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node-a]}]}]
  reservedFor: [{resource: pods, name: p, uid: u-7}]
"""


def read(text: str) -> ReadClaims:
    return read_objects(read_workloads(text, name="claims.yaml").claims)


def problems(text: str) -> list[str]:
    with pytest.raises(ManifestError) as error:
        read(text)
    return list(error.value.lines())


def test_a_slice_has_its_devices_with_qualified_names():
    (slice_,) = read(SLICE).slices
    (device,) = slice_.devices

    assert (slice_.host, slice_.generation, slice_.slice_count) == ("node-a", 3, 2)
    assert device.id == DeviceId("gpu.example.com", "node-a", "gpu-0")
    assert device.attributes == {
        "gpu.example.com/model": "h100",
        "gpu.example.com/index": 0,
        "gpu.example.com/linked": False,
        "gpu.example.com/driverVersion": "1.2.3",
        "resource.kubernetes.io/numaNode": 1,
        "gpu.example.com/lanes": (1, 2),
    }
    assert device.versions == {"gpu.example.com/driverVersion"}
    assert device.capacity == {
        "gpu.example.com/memory": Quantity.parse("80Gi"),
        "gpu.example.com/cores": Quantity.parse("7"),
    }
    assert device.taints == (DeviceTaint("broken", "yes", "NoSchedule"),)


def test_a_claim_has_its_requests_alternatives_and_devices():
    claim = read(CLAIM).objects.claims["ml", "mine"]

    assert [[(each.name, each.device_class, each.count) for each in request] for request in claim.requests] == [
        [("gpu", "gpu", 2)],
        [("nic/fast", "fast-nic", 1), ("nic/any", "nic", None)],
    ]
    assert claim.requests[0][0].selectors == ("true",)
    assert claim.requests[0][0].tolerations == (DeviceToleration("broken", None, ""),)
    assert claim.constraints == (MatchAttribute("resource.kubernetes.io/pcieRoot", frozenset({"gpu"})),)
    assert claim.allocated == (AllocatedDevice("gpu", DeviceId("gpu.example.com", "node-a", "gpu-0")),)
    assert (claim.host, claim.reserved_for) == ("node-a", frozenset({"u-7"}))


def test_beta_versions_have_the_fields_of_a_request_themselves():
    beta = CLAIM.replace("/v1", "/v1beta1").replace("exactly:\n        ", "").replace("\n        ", "\n      ")

    assert read(beta).objects.claims["ml", "mine"].requests[0][0].count == 2


def test_a_template_and_a_class_are_read():
    objects = read(
        "{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: t, namespace: ml},"
        " spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}}\n---\n"
        "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu},"
        ' spec: {extendedResourceName: example.com/gpu, selectors: [{cel: {expression: "1 == 1"}}]}}'
    ).objects

    assert objects.templates["ml", "t"].requests[0][0].device_class == "gpu"
    assert objects.classes["gpu"].selectors == ("1 == 1",)
    assert objects.class_of("example.com/gpu") == objects.classes["gpu"]


def test_lists_of_a_cluster_are_read():
    listed = read(
        "{apiVersion: resource.k8s.io/v1, kind: DeviceClassList, items: [{metadata: {name: a}}, {metadata: {name: b}}]}"
    )

    assert sorted(listed.objects.classes) == ["a", "b"]


def test_a_slice_whose_devices_name_their_nodes_is_one_part_per_node():
    spec = claims.SliceSpec(
        driver="d",
        per_device_node_selection=True,
        devices=(claims.SliceDeviceSpec(name="x", node_name="a"), claims.SliceDeviceSpec(name="y", node_name="b")),
    )

    parts = claims.slices_from(claims.ResourceSlice(spec=spec))

    assert [(part.host, [device.id.device for device in part.devices]) for part in parts] == [
        ("a", ["x"]),
        ("b", ["y"]),
    ]


def test_objects_of_an_api_server_are_decoded_at_once():
    decoded = msgspec.json.decode(
        b'{"metadata":{"name":"s","managedFields":[]},"spec":{"driver":"d","pool":{"name":"p","generation":1,'
        b'"resourceSliceCount":1},"nodeName":"n","devices":[{"name":"x","attributes":{"a":{"int":1}},'
        b'"capacity":{"m":{"value":"1Gi","requestPolicy":{"default":"1"}}}}]}}',
        type=claims.ResourceSlice,
    )
    (slice_,) = claims.slices_from(decoded)

    assert slice_.devices[0].attributes == {"d/a": 1}
    assert slice_.devices[0].capacity == {"d/m": Quantity.parse("1Gi")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            SLICE.replace("80Gi", "80 GB"),
            "claims.yaml:18: spec.devices[0].capacity[memory].value: not a quantity; write 80G or 80Gi",
        ),
        (SLICE.replace("driver: gpu.example.com", "driver: ''"), "claims.yaml:6: spec.driver: Required value"),
        (
            SLICE.replace("{int: 1}", "{int: one}"),
            "claims.yaml:16: spec.devices[0].attributes[resource.kubernetes.io/numaNode].int: ",
        ),
        (SLICE.replace("{name: s}", "{}"), "claims.yaml:4: metadata.name: Required value"),
        (CLAIM.replace("deviceClassName: gpu\n", "count: 1\n"), "spec.devices.requests[0]: Required value"),
        (CLAIM.replace("count: 2", "count: two"), "spec.devices.requests[0].exactly.count: must be a 64-bit integer"),
    ],
    ids=["quantity", "driver", "attribute", "name", "class", "type"],
)
def test_a_problem_has_its_line_and_field(text, line):
    messages = problems(text)

    assert any(line in message for message in messages), messages


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (CLAIM + "---" + CLAIM.replace("mine", "other"), "is allocated to ml/mine and ml/other"),
        (CLAIM + "---" + SLICE.replace("gpu.example.com", "other"), "driver gpu.example.com has no ResourceSlice here"),
        (CLAIM.partition("status:")[0], 'ml/mine names DeviceClass "fast-nic", which is not given'),
    ],
    ids=["allocated twice", "missing driver", "missing class"],
)
def test_likely_mistakes_are_noted(text, note):
    assert any(note in each for each in read(text).notes)

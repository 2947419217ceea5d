import pytest

from alignup.align.workload import names


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("0-a", 0, id="digits and dashes inside are fine"),
        pytest.param("-c", 1, id="no dash in front"),
        pytest.param("main\n", 1, id="no line break at the end"),
        pytest.param("a" * 63, 0, id="63 characters are fine"),
        pytest.param("a" * 64, 1, id="64 are too many"),
        pytest.param("A" * 64, 2, id="two problems"),
    ],
)
def test_dns_labels(text, faults):
    assert len(names.label_problems(text)) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("web.example.com", 0, id="dots are fine"),
        pytest.param("web..com", 1, id="no empty part"),
        pytest.param("a" * 254, 1, id="254 characters are too many"),
    ],
)
def test_dns_subdomains(text, faults):
    assert len(names.subdomain_problems(text)) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("example.com/Gpu_1.x", 0, id="capitals, dots and underscores are fine after the slash"),
        pytest.param("a/b/c", 1, id="one slash at most"),
        pytest.param("/name", 1, id="an empty prefix is none"),
        pytest.param("EXAMPLE.com/gpu", 1, id="no capitals in the prefix"),
        pytest.param("example.com/", 2, id="an empty name is missing and ill-formed"),
        pytest.param(f"example.com/{'g' * 64}", 1, id="64 characters after the slash are too many"),
    ],
)
def test_qualified_names(text, faults):
    assert len(names.qualified_problems(text)) == faults


@pytest.mark.parametrize(
    ("name", "extended", "counted", "overcommittable", "scalar"),
    [
        pytest.param("hugepages-2Mi", False, False, False, True, id="huge pages are not overcommitted"),
        pytest.param("example.com/gpu", True, True, False, True, id="extended"),
        pytest.param("kubernetes.io/foo", False, False, True, True, id="kubernetes.io is native"),
        pytest.param("requests.example.com/x", False, False, False, False, id="a quota's name is not extended"),
        pytest.param(f"{'a' * 250}/x", False, False, False, False, id="too long for a quota"),
        pytest.param("attachable-volumes-x", False, False, True, True, id="volumes are counted by the fit check"),
        pytest.param("pods", False, True, True, False, id="objects come in whole numbers"),
    ],
)
def test_properties_of_a_name(name, extended, counted, overcommittable, scalar):
    assert names.is_extended(name) is extended
    assert names.is_counted(name) is counted
    assert names.is_overcommittable(name) is overcommittable
    assert names.is_scalar(name) is scalar


@pytest.mark.parametrize(
    ("name", "for_containers", "for_pods"),
    [
        pytest.param("cpu", 0, 0, id="cpu is for both"),
        pytest.param("hugepages-foo", 0, 0, id="a page size is not judged by the name"),
        pytest.param("ephemeral-storage", 0, 1, id="ephemeral storage is for containers"),
        pytest.param("example.com/gpu", 0, 1, id="so is an extended resource"),
        pytest.param("pods", 1, 1, id="a standard name is not always one for containers"),
        pytest.param("gpu", 2, 1, id="a bare name must be a known one"),
        pytest.param("requests.hugepages-2Mi", 1, 1, id="a quota's huge pages are for quotas"),
        pytest.param("my_domain/dev", 2, 1, id="a bad prefix makes a bad extended resource"),
    ],
)
def test_resources_of_containers_and_pods(name, for_containers, for_pods):
    assert len(names.container_resource_problems(name)) == for_containers
    assert len(names.pod_resource_problems(name)) == for_pods


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("hugepages-2Mi", 2 << 20, id="two mebibytes"),
        pytest.param("hugepages-1.5Gi", 3 << 29, id="a fraction of a unit"),
        pytest.param("hugepages-foo", None, id="no size"),
        pytest.param("hugepages-0", None, id="pages of no size"),
        pytest.param("hugepages-500m", None, id="pages of half a byte"),
    ],
)
def test_page_size(name, size):
    assert names.page_size(name) == size

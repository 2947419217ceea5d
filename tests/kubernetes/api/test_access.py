"""Where the API server and the credentials are found."""

import base64
import json
import os

import pytest

from alignup.kubernetes.api import find_access
from alignup.kubernetes.api.access import proxy_for
from alignup.kubernetes.api.credentials import Credential, PluginCredentials
from alignup.kubernetes.api.errors import AccessError

pytestmark = pytest.mark.anyio

EXEC_V1 = "client.authentication.k8s.io/v1"
PEM = base64.b64encode(b"PEM").decode()


def config(**changes):
    """A kubeconfig with one context; *changes* are to the cluster, the user and the context."""
    cluster = {"server": "https://api.example:6443/", **changes.pop("cluster", {})}
    user = {"token": "t", **changes.pop("user", {})}
    context = {"cluster": "c", "user": "u", **changes.pop("context", {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": context}],
        "current-context": "here",
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def write(content, name="config"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def service_account(tmp_path):
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    for name, text in (("token", "pod-token\n"), ("ca.crt", "PEM"), ("namespace", "alignup")):
        (directory / name).write_text(text)
    return directory


async def test_the_current_context_of_a_kubeconfig(write):
    path = write(config(cluster={"certificate-authority-data": PEM}, context={"namespace": "ml"}))

    access = find_access(path, environ={})

    assert (access.server, access.namespace, access.authority) == ("https://api.example:6443", "ml", b"PEM")
    assert access.source == f'context "here" of {path}'
    assert (access.verify, access.compress, access.proxy) == (True, True, "")
    assert await access.credentials.current() == Credential("Bearer t")


async def test_yaml_with_null_lists_is_read(write):
    path = write(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- {name: a, cluster: {server: 'http://a'}}\n"
        "contexts:\n- {name: a, context: {cluster: a, user: ''}}\nusers: null\npreferences: {}\n"
    )

    assert await find_access(path, environ={}).credentials.current() == Credential()


async def test_another_context_can_be_chosen(write):
    content = config()
    content["clusters"].append({"name": "d", "cluster": {"server": "https://other.example"}})
    content["contexts"].append({"name": "there", "context": {"cluster": "d", "user": "u"}})

    assert find_access(write(content), context="there", environ={}).server == "https://other.example"


async def test_files_in_kubeconfig_are_merged_and_the_first_definition_counts(write, tmp_path):
    first = write(
        {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}, "a/1"
    )
    second = write(config(user={"token": "", "tokenFile": "token"}), "b/2")
    third = write(config(cluster={"server": "https://ignored.example"}), "c/3")
    write("from the directory of the file that defines the user", "b/token")
    environ = {"KUBECONFIG": f"{first}:{tmp_path}/missing:{second}:{third}", "HOME": "/"}

    access = find_access(environ=environ)

    assert access.source.startswith('context "x" of ')
    assert access.server == "https://api.example:6443"
    assert (await access.credentials.current()).authorization.startswith("Bearer from the directory")


async def test_the_order_is_that_of_kubectl(write, tmp_path, service_account):
    home = tmp_path / "home"
    pod = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "HOME": str(home)}

    def found(environ):
        return find_access(environ=environ, service_account=service_account)

    in_cluster = found(pod)
    assert (in_cluster.server, in_cluster.namespace) == ("https://[fd00::1]:6443", "alignup")
    assert (in_cluster.authority, in_cluster.compress) == (b"PEM", False)
    assert await in_cluster.credentials.current() == Credential("Bearer pod-token")
    write(config(cluster={"server": "https://home.example"}), "home/.kube/config")
    assert found(pod).server == "https://home.example"
    environment = write(config(cluster={"server": "https://environment.example"}), "environment")
    assert found({**pod, "KUBECONFIG": str(environment)}).server == "https://environment.example"


async def test_nothing_found_says_where_it_was_looked_for():
    with pytest.raises(AccessError) as caught:
        find_access(environ={"HOME": "/nonexistent"})

    assert str(caught.value) == (
        "no Kubernetes API server: KUBECONFIG is not set, /nonexistent/.kube/config does not exist, and this is not a "
        "pod"
    )


async def test_a_pod_without_a_token_is_an_error(tmp_path):
    with pytest.raises(AccessError, match=r"/token: cannot read the token of the service account"):
        find_access(environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": "/"}, service_account=tmp_path)


async def test_plugins_impersonation_and_certificates(write, log):
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "./login",
        "args": None,
        "env": [{"name": "A", "value": "b"}],
        "provideClusterInfo": True,
    }
    user = {"token": "", "exec": plugin, "as": "eve", "as-groups": ["x", "y"]}
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "api", "proxy-url": "http://proxy:3128"}
    path = write(config(cluster=cluster, user=user))

    access = find_access(path, environ={})

    assert isinstance(access.credentials, PluginCredentials)
    assert access.headers == (("Impersonate-User", "eve"), ("Impersonate-Group", "x"), ("Impersonate-Group", "y"))
    assert (access.verify, access.server_name, access.proxy) == (False, "api", "http://proxy:3128")
    assert [(entry["event"], entry["server"]) for entry in log] == [
        ("server certificate not verified: insecure-skip-tls-verify is set", "https://api.example:6443")
    ]
    with pytest.raises(AccessError, match="credential plugin login is not installed; install it"):
        await access.credentials.current()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("a: [", r".* that begins on line 2", id="not YAML"),
        pytest.param("- a", r"not a kubeconfig: expected `object`, got `array`", id="a list"),
        pytest.param(
            config(user={"token": 7}),
            r"users\[0\]\.user\.token: expected `str`, got `int`",
            id="a wrong type",
        ),
        pytest.param(
            config(**{"current-context": ""}),
            r"no current context; set it with: .* \(there are: here\)",
            id="no current context",
        ),
        pytest.param(
            config(**{"current-context": "x"}),
            r'no context is called "x" \(there are: here\)',
            id="unknown context",
        ),
        pytest.param(config(clusters=[]), r'no cluster is called "c" \(there are none\)', id="unknown cluster"),
        pytest.param(config(users=[]), r'no user is called "u" \(there are none\)', id="unknown user"),
        pytest.param(
            config(cluster={"server": ""}),
            r'cluster "c": server: must be a URL such as https://host:6443, missing',
            id="no server",
        ),
        pytest.param(
            config(cluster={"certificate-authority-data": "!"}),
            r"certificate-authority-data is not base64",
            id="not base64",
        ),
        pytest.param(
            config(user={"client-certificate-data": PEM}),
            r"a user has no client-key; a certificate needs both",
            id="no key",
        ),
        pytest.param(
            config(user={"auth-provider": {"name": "gcp"}}),
            r"auth-provider is not supported, nor by kubectl since 1.26; use an exec plugin",
            id="auth-provider",
        ),
        pytest.param(
            config(user={"token": "", "exec": {"command": "x", "apiVersion": "v1"}}),
            r'exec: apiVersion "v1" is not supported; use client.authentication.k8s.io/v1',
            id="an unknown plugin API",
        ),
        pytest.param(
            config(user={"token": "", "exec": {"command": "x", "apiVersion": EXEC_V1, "interactiveMode": "Perhaps"}}),
            r"exec: interactiveMode must be Never, IfAvailable or Always",
            id="an unknown mode",
        ),
    ],
)
async def test_what_is_wrong_with_a_kubeconfig_is_said(write, content, message):
    path = write(content)

    with pytest.raises(AccessError, match=rf"^{path}(:\d+)?: {message}$"):
        find_access(path, environ={})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("[" * 100_000, "nested more than 100 levels deep", id="deep YAML"),
        pytest.param('{"a":' * 100_000, "nested more than 100 levels deep", id="deep JSON"),
        pytest.param(
            "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
            "more than 400,000 values and keys",
            id="aliases",
        ),
        pytest.param(
            f'{{"users": [{{"name": {"9" * 100_000}}}]}}',
            r"users\[0\]\.name: expected `str`, got `float`",
            id="digits",
        ),
        pytest.param(" " * (17 << 20), "larger than 16 MiB", id="size"),
        pytest.param("a: 1\n---\nb: 1\n", "a second document", id="two documents"),
    ],
)
async def test_a_hostile_kubeconfig_is_refused_in_words(write, content, message):
    with pytest.raises(AccessError, match=message):
        find_access(write(content), environ={})


async def test_a_kubeconfig_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config")

    with pytest.raises(AccessError, match="cannot read the kubeconfig: it is a named pipe; give a regular file"):
        find_access(tmp_path / "config", environ={})


async def test_a_missing_file_is_named(write, tmp_path):
    with pytest.raises(AccessError, match=r"/none: cannot read the kubeconfig: No such file or directory"):
        find_access(tmp_path / "none", environ={})
    with pytest.raises(AccessError, match=r"none of these kubeconfig files exists"):
        find_access(environ={"KUBECONFIG": f"{tmp_path}/none:{tmp_path}/neither"})
    path = write(config(cluster={"certificate-authority": "ca.crt"}))
    with pytest.raises(
        AccessError, match=r"/ca.crt: cannot read the certificate authority: No such file or directory$"
    ):
        find_access(path, environ={})


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        pytest.param("https://a.example", {}, "", id="none"),
        pytest.param("https://a.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1", id="a proxy"),
        pytest.param("https://a.example", {"https_proxy": "p:1"}, "http://p:1", id="without a scheme"),
        pytest.param("http://a.example", {"HTTPS_PROXY": "http://p:1"}, "", id="of another scheme"),
        pytest.param("https://a.example", {"HTTPS_PROXY": "p", "NO_PROXY": "x,example"}, "", id="a domain"),
        pytest.param(
            "https://a.example", {"HTTPS_PROXY": "http://p", "NO_PROXY": "ample"}, "http://p", id="not a domain"
        ),
        pytest.param(
            "https://example", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".example"}, "http://p", id="subdomains only"
        ),
        pytest.param("https://10.96.0.1", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, "", id="a network"),
        pytest.param(
            "https://11.0.0.1",
            {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,x"},
            "http://p",
            id="another network",
        ),
        pytest.param("https://11.0.0.1", {"HTTPS_PROXY": "http://p", "no_proxy": "*"}, "", id="everything"),
        pytest.param("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p"}, "", id="this machine"),
        pytest.param("https://localhost:6443", {"HTTPS_PROXY": "http://p"}, "", id="this machine by name"),
    ],
)
async def test_proxies_of_the_environment(server, environ, proxy):
    assert proxy_for(server, environ) == proxy

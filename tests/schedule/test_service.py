"""The cluster service: who answers, explanations, metrics, and TLS."""

import asyncio
import socket
import ssl
from contextlib import ExitStack, contextmanager

import httpx2
import pytest

from alignup.align.errors import ListenError
from alignup.kubernetes.api import Access
from alignup.placement.scheduling.bindings import NOT_LEADING
from alignup.placement.scheduling.events import LeadershipEnded
from alignup.schedule.extender.bind import BindVerb
from alignup.schedule.extender.messages import BindingArgs
from alignup.schedule.service import VERBS, LeaseOptions, ScheduleOptions, ScheduleService, open_service, schedule_app
from alignup.testing.api_server import ApiFault
from alignup.web.asgi_server import ConnectionLimits, ServerLimits, serve_app
from alignup.web.authentication import AccessRules
from alignup.web.metrics import health_app
from alignup.web.sockets import ServerCertificate, tcp_socket
from tests import certificates
from tests.align.hosts import pod
from tests.deadlines import until
from tests.effort import rounds
from tests.observe.api_objects import overflowing_pod
from tests.schedule.test_extender import JSON, OTHER, WIDE, bound, create, filtered, occupy

pytestmark = pytest.mark.anyio

PLAIN_POD = pod("plain")


def candidate(client, name):
    lease = LeaseOptions(namespace="kube-system", identity=name)
    return ScheduleService(client, lease=lease)


async def test_only_the_leader_answers_and_a_standby_takes_over(nodes, client, follow):
    first, second = candidate(client, "first"), candidate(client, "second")
    running = follow(first.run())
    await until(lambda: first.leading)
    follow(second.run())
    await until(lambda: second.live.ready.is_set() and "first leads" in str(second.problems()))
    app = schedule_app(second)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        answer = await http.post("/v1/extender/filter", content=b"{}", headers=JSON)
        assert (answer.status_code, answer.json()["detail"]) == (503, "this is a standby: first leads")
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200

        running.cancel()
        await until(lambda: second.leading)
        assert not first.leading
        assert (await filtered(http))["NodeNames"] == ["a"]
        assert (await http.get("/readyz")).status_code == 200


async def test_a_leader_ends_only_after_its_last_binding(nodes, client, follow):
    first, second = candidate(client, "first"), candidate(client, "second")
    running = follow(first.run())
    await until(lambda: first.leading)
    follow(second.run())
    await second.live.ready.wait()
    await create(nodes, first, WIDE)
    nodes.server.inject(ApiFault(delay=0.8), verb="create", resource="pods")
    app = schedule_app(first)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        binding = asyncio.create_task(bound(http))
        await until(lambda: not first.live.verdict(OTHER, "a").admits)
        running.cancel()
        await until(lambda: second.leading)

        assert nodes.bound() == {"wide": "a"}
        assert await binding == ""


async def test_a_binding_that_waits_for_another_is_not_written_once_the_lead_is_lost(live, nodes, client):
    """The next leader would not know of it."""
    for created in (WIDE, PLAIN_POD):
        nodes.create(created)
    nodes.server.inject(ApiFault(delay=0.2), verb="create", resource="pods")
    bind = BindVerb(client, live, {})
    await until(lambda: all(live.find_pod("default", created.name) for created in (WIDE, PLAIN_POD)))

    asked = [BindingArgs(created.name, "default", "a") for created in (WIDE, PLAIN_POD)]
    tasks = [asyncio.create_task(bind.respond(args)) for args in asked]
    await until(lambda: not live.verdict(OTHER, "a").admits)
    live.schedule(LeadershipEnded())

    assert [answer.error for answer in await asyncio.gather(*tasks)] == ["", NOT_LEADING]
    assert nodes.bound() == {"wide": "a", "plain": ""}


async def test_explanations_have_the_answer_of_every_node(http, nodes, service):
    occupy(nodes, "b")
    nodes.add("new", observed=False)
    nodes.create(WIDE)
    await until(lambda: service.live.find_pod("default", "wide") and not service.live.verdict(WIDE, "b").admits)
    await until(lambda: service.live.nodes.get("new"))
    await filtered(http, names=["a", "b", "new"])

    answers = (await http.get("/v1/explain/default/wide")).json()

    assert answers["counts"] == {"admits": 1, "rejects": 1, "unknown": 1}
    assert [(row["node"], row["verdict"], row.get("reason", "")) for row in answers["nodes"]] == [
        ("a", "admits", ""),
        ("b", "rejects", "not enough cpu on one NUMA node"),
        ("new", "unknown", "no HostState"),
    ]
    assert answers["nodes"][0]["placements"][0]["given"]["cpu"] == {"cpu": "4-7"}
    score = answers["nodes"][0]["score"]
    assert score["total"] == pytest.approx(sum(score["points"].values()))
    assert {"preferred", "numaNodes", "distance", "stranded", "devicesBeside", "cpusBeside", "room"} <= score.keys()
    assert score["room"]["largest"]["cpu"] == 3
    assert "4 needed" in answers["nodes"][1]["detail"]
    assert answers["lastFilter"]["offered"] == ["a"]
    answers = (await http.get("/v1/explain/default/wide?node=b")).json()
    assert [row["node"] for row in answers["nodes"]] == ["b"]
    assert (await http.get("/v1/explain/default/gone")).status_code == 404


async def test_metrics_count_predictions_requests_and_kept_verdicts(http, nodes, service):
    nodes.create(WIDE)
    await filtered(http)
    await filtered(http)
    await bound(http)
    nodes.admit("a", WIDE)
    nodes.create(WIDE, "a")
    await until(lambda: "wide" in service.live.cluster.record("a").ledger.pods)

    text = (await http.get("/metrics")).text
    assert 'alignup_prediction_total{cause="",outcome="as_predicted",verdict="admits"} 1' in text
    assert 'alignup_extender_request_duration_seconds_count{code="200",verb="filter"} 2' in text
    assert "alignup_schedule_known_nodes 2" in text
    assert "alignup_schedule_leading 1" in text
    assert "alignup_schedule_kept_verdicts_total 2" in text


async def test_clients_need_a_certificate(tmp_path, service):
    certificate = ServerCertificate(*certificates.install("first", tmp_path), client_authority=certificates.ca_file())

    async def ask(url, name=""):
        context = ssl.create_default_context(cafile=certificates.ca_file())
        if name:
            (tmp_path / name).mkdir()
            context.load_cert_chain(*certificates.install(name, tmp_path / name))
        async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
            return (await http.get(url)).text

    with tcp_socket(0) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/healthz"
        async with serve_app(schedule_app(service), listener, stopping=asyncio.Event(), tls=certificate.context):
            for refused in ("", certificates.EXPIRED):
                with pytest.raises(httpx2.HTTPError):
                    await ask(url, refused)
            assert await ask(url, "client") == "ok\n"


def test_an_authority_that_cannot_be_read_is_an_error(tmp_path):
    files = certificates.install("first", tmp_path)
    with pytest.raises(ListenError, match=r"authority .*none\.pem: No such file"):
        ServerCertificate(*files, client_authority=tmp_path / "none.pem")


PATHS = ("/v1/explain/default/wide", "/", "/pods", "/v1/events", *(f"/v1/extender/{verb}" for verb in VERBS))


@pytest.fixture
def listening(nodes, monkeypatch):
    """The addresses of services that were opened."""
    addresses = []

    @contextmanager
    def noting(port, host):
        with tcp_socket(port, host) as listener:
            addresses.append("http://{}:{}".format(*listener.getsockname()[:2]))
            yield listener

    monkeypatch.setattr("alignup.schedule.service.tcp_socket", noting)
    return addresses


async def test_schedulers_are_the_ones_to_close_idle_connections(nodes, server, monkeypatch):
    """They keep them for 90 seconds, and do not repeat a request that meets the end of one."""
    limits = []

    def noting(*args, **kwargs):
        limits.append(kwargs["limits"])
        return serve_app(*args, **kwargs)

    monkeypatch.setattr("alignup.schedule.service.serve_app", noting)
    options = ScheduleOptions(listen=("127.0.0.1", 0), names=("extender",), health=("127.0.0.1", 0))
    async with open_service(Access(server=server.url), options):
        extender, probes = limits
    assert min(extender.idle, extender.first, extender.unauthenticated) > 90
    assert extender.names == probes.names
    assert (probes.idle, probes.first) == (30, None)


async def statuses(url, **headers):
    """The statuses of all paths, with these headers."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, headers=headers) as http:
        answers = {}
        for path in PATHS:
            verb = "POST" if "extender" in path else "GET"
            async with http.stream(verb, path, content=b"{}", headers=JSON) as answer:
                answers[path] = answer.status_code
        assert (await http.get("/healthz")).status_code == 200  # probes send nothing
        return answers


async def test_clients_need_the_token(nodes, server, tmp_path, listening):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    options = ScheduleOptions(listen=("127.0.0.1", 0), token_file=token)
    async with open_service(Access(server=server.url), options):
        (url,) = listening
        assert set((await statuses(url)).values()) == {401}
        assert set((await statuses(url, Authorization="Bearer wrong")).values()) == {401}
        assert 401 not in (await statuses(url, Authorization="Bearer secret")).values()
        # As kube-scheduler sends it, with the token in urlPrefix.
        assert 401 not in (await statuses(url.replace("//", "//alignup:secret@"))).values()


@pytest.mark.parametrize("any_client", [False, True])
async def test_without_a_token_other_users_of_the_machine_are_not_served(
    server, nodes, listening, monkeypatch, any_client
):
    async with open_service(Access(server=server.url), ScheduleOptions(listen=("127.0.0.1", 0), any_client=any_client)):
        (url,) = listening
        assert 401 not in (await statuses(url)).values()
        monkeypatch.setattr("alignup.web.served_connection.loopback_uid", lambda *_ends: 12345)
        assert (set((await statuses(url)).values()) == {401}) is not any_client


async def test_no_path_is_served_under_the_name_of_another_site(http):
    """A page of such a site could bind a pod through a port that kubectl forwards."""
    for path in (*PATHS, "/healthz", "/readyz", "/metrics", "/static/pages.css", "/nothing"):
        verb = "POST" if "extender" in path else "GET"
        answer = await http.request(verb, path, content=b"{}", headers={**JSON, "host": "evil.example"})
        assert answer.status_code == 421, path


@pytest.mark.soak
async def test_hostile_requests_add_no_series_to_the_metrics(http, nodes, service):
    """A series for every name that a client makes up would take memory without end."""

    async def attack(seed):
        for number in range(rounds(10, soak=400)):
            name = f"x{seed}-{number}"
            for path in (f"/v1/extender/{name}", f"/v1/explain/{name}/{name}", f"/{name}", f"/nodes/{name}"):
                await http.request("POST" if "extender" in path else "GET", path, headers=JSON, content=b"{}")
            for verb in VERBS:
                await http.post(f"/v1/extender/{verb}?{name}", headers=JSON, content=name.encode())
                await http.request(f"ODD{number}", f"/v1/extender/{verb}")
            await filtered(http, pod(name, cpu="64", memory="1Gi"), names=[name])
            await filtered(http, {"metadata": {"name": name, "uid": name}, "spec": {"containers": []}}, names=[name])
            await bound(http, pod(name), node=name)

    async def series():
        return {line.rpartition(" ")[0] for line in (await http.get("/metrics")).text.splitlines()}

    await attack("first")
    before = await series()
    await attack("second")

    assert await series() == before
    verbs = {part.split('"')[1] for line in before for part in line.split(",") if part.startswith("verb=")}
    assert verbs == set(VERBS)


async def test_slow_strangers_do_not_keep_a_scheduler_waiting(service):
    """A thousand connections of a few strangers, none of which ends by itself, and one scheduler."""
    limits = ServerLimits(connections=ConnectionLimits(authenticated=16, unauthenticated=32, per_peer=32))
    app = schedule_app(service, access=AccessRules(token=b"secret"))
    beginnings = [
        b"",
        b"POST /v1/extender/bind HTT",
        b"POST /v1/extender/bind HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
        b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    headers = {"Authorization": "Bearer secret"}
    with tcp_socket(0) as listener:
        address = listener.getsockname()[:2]
        url = "http://{}:{}".format(*address)
        async with (
            serve_app(app, listener, stopping=asyncio.Event(), limits=limits),
            httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, headers=headers) as scheduler,
        ):
            assert (await filtered(scheduler))["NodeNames"]
            for _ in range(20):
                with ExitStack() as strangers:
                    for number in range(50):
                        stranger = strangers.enter_context(socket.create_connection(address))
                        stranger.sendall(beginnings[number % len(beginnings)])
                    assert (await filtered(scheduler))["NodeNames"]
                    async with httpx2.AsyncClient(
                        base_url=url, trust_env=False, verify=False, headers=headers
                    ) as newcomer:
                        assert (await newcomer.get("/v1/explain/default/none")).status_code == 404


async def test_probes_need_no_certificate(service):
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(health_app(service.metrics.registry, readiness=service.problems)),
        base_url="http://x",
    ) as http:
        assert (await http.get("/readyz")).text == "ok\n"
        assert (await http.post("/v1/extender/filter", content=b"{}", headers=JSON)).status_code == 404


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(nodes, client, follow):
    nodes.server.inject(ApiFault(status=503, times=20))
    nodes.server.inject(ApiFault(disconnect=True, times=None), verb="watch")
    made = ScheduleService(client)
    follow(made.run())
    await until(lambda: made.live.nodes.error)
    assert made.problems() == ("the cluster has not been read yet",)

    nodes.server.inject(ApiFault(), verb="watch")
    nodes.server.inject(ApiFault())
    await until(lambda: made.leading)


async def test_a_pod_that_cannot_be_read_stops_no_answer(http, nodes, service):
    nodes.server.put(overflowing_pod("huge", "a"))
    nodes.create(pod("small", cpu="1", memory="1Gi"))
    await until(lambda: service.live.unreadable and service.live.find_pod("default", "small"))

    assert (await http.get("/v1/explain/default/huge")).status_code == 422
    answer = (await http.get("/v1/explain/default/small")).json()
    assert {row["node"]: row["verdict"] for row in answer["nodes"]} == {"a": "unknown", "b": "admits"}
    assert next(row["detail"] for row in answer["nodes"] if row["node"] == "a").endswith("default/huge")
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.text.splitlines()[0]) == (200, "ok")
    assert "1 object cannot be read: Pod default/huge: " in ready.text
    assert "\nalignup_schedule_unreadable_objects 1\n" in (await http.get("/metrics")).text
    for page in ("/", "/pods?q=huge", "/nodes/a"):
        assert (await http.get(page)).status_code == 200
    assert (await http.get("/pods/default/huge")).status_code in {200, 422}


async def test_a_service_without_the_extender_answers_no_scheduler_in_words(nodes, start_service):
    service = await start_service(serves_extender=False)
    app = schedule_app(service)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        answer = await http.post("/v1/extender/filter", json={})

    assert answer.status_code == 404
    assert answer.json()["detail"] == "This service answers no schedulers: it was started with --no-extender."

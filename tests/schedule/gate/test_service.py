"""The gate as part of the cluster service: the webhook with its own certificate, and the controller that leads."""

import asyncio
import base64
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import httpx2
import pytest

from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.admission import LABEL, OPT_IN
from alignup.schedule.gate.certificates import CertificateKeeper, renew_authority, secret_data
from alignup.schedule.gate.service import WEBHOOK_PATH, GateServiceOptions, WebhookOptions, add_gate
from alignup.schedule.service import ScheduleService
from alignup.web.metrics import metrics_lines
from alignup.web.sockets import tcp_socket
from tests.align.hosts import pod
from tests.deadlines import SECONDS, until
from tests.kubernetes.api.tasks import running
from tests.observe.api_objects import api_pod
from tests.schedule.gate.test_admission import pod as new_pod
from tests.schedule.gate.test_admission import review
from tests.schedule.gate.test_authority_installation import secret, stored

pytestmark = pytest.mark.anyio
NAME = "alignup-webhook.alignup-system.svc"


@pytest.fixture
async def service(client):
    return ScheduleService(client)


@pytest.fixture
async def webhook(server, cluster, service):
    """The webhook of a cluster service with a gate."""
    server.put(secret(secret_data(renew_authority(None, names=(NAME,), now=datetime.now(UTC)))))
    address = WebhookOptions(listen=("127.0.0.1", 0), namespace="alignup-system")
    options = GateServiceOptions(webhook=address, controller=GateOptions(patience=0.0))
    with add_gate(service, options) as served:
        async with running() as start:  # it ends before its socket is closed
            start(service.run())
            assert served is not None
            assert isinstance(served.certificate, CertificateKeeper)
            await served.certificate.ready.wait()
            yield served


async def ask(server, webhook, document):
    trusting = ssl.create_default_context(cadata=stored(server).bundle.decode())
    port = webhook.listener.getsockname()[1]
    async with httpx2.AsyncClient(verify=trusting, trust_env=False) as http:
        return await http.post(
            f"https://127.0.0.1:{port}{WEBHOOK_PATH}",
            content=json.dumps(document),
            headers={"Content-Type": "application/json", "Host": NAME},
            extensions={"sni_hostname": NAME},
        )


async def test_a_pod_is_gated_by_the_webhook_and_released_by_the_leader(server, webhook, cluster, service):
    answered = await ask(server, webhook, review(new_pod()))
    assert answered.status_code == 200
    patch = json.loads(base64.b64decode(answered.json()["response"]["patch"]))
    assert patch[0]["value"] == [{"name": GATE}]

    cluster.gate(pod("wide", cpu="4"))
    await until(lambda: cluster.bound() == {"wide": "a"})
    await until(lambda: 'alignup_gate_releases_total{outcome="bound"} 1\n' in metrics_lines(service.metrics.registry))
    text = "".join(metrics_lines(service.metrics.registry))
    for line in (
        'alignup_gate_reviews_total{outcome="gated"} 1',
        "alignup_gate_wait_seconds_count 1",
        'alignup_gate_pods{state="blocked"} 0',
    ):
        assert f"{line}\n" in text
    assert "alignup_gate_certificate_expiry_timestamp_seconds 1" in text
    assert "alignup_gate_authority_expiry_timestamp_seconds 2" in text


async def test_an_explanation_names_the_pod_that_a_node_is_kept_for(webhook, cluster, service):
    for name in ("first", "second"):
        cluster.gate(pod(name, cpu="4"))
    await until(lambda: sorted(cluster.bound().values()) == ["a", "b"])
    cluster.gate(pod("wide", cpu="4"))
    await until(lambda: any(map(service.live.scheduling.kept_nodes.describe, "ab")))

    document = await service.explain("default", "wide", "")
    kept = [row["kept"] for row in document["nodes"] if "kept" in row]
    assert kept == ["kept for default/wide, which has waited longer"]


async def test_a_malformed_review_is_answered_with_the_reason(server, webhook):
    answered = await ask(server, webhook, {"kind": "AdmissionReview"})

    assert (answered.status_code, answered.text) == (400, "not a review: object missing required field `apiVersion`\n")


async def test_the_api_server_is_the_one_to_close_idle_connections(webhook):
    """It keeps them for 90 seconds, and creates a pod without the gate if its request meets the end of one."""
    assert webhook.limits.idle > 90
    assert webhook.limits.first > 90
    assert webhook.limits.unauthenticated > 90


async def test_the_limits_of_the_webhook_are_those_of_its_listener(server, webhook):
    """The connection ends when it was idle for a moment, since this test says so."""
    trusting = ssl.create_default_context(cadata=stored(server).bundle.decode())
    with tcp_socket(0) as listener:
        listener.listen()  # the kernel lets the connection wait until the webhook runs
        short = webhook._replace(listener=listener, limits=replace(webhook.limits, idle=0.01))
        async with running() as start:
            start(short.run())
            connect = asyncio.open_connection(*listener.getsockname()[:2], ssl=trusting, server_hostname=NAME)
            reader, writer = await connect
            writer.write(f"GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"connection: close" not in answer


async def test_a_pod_that_the_webhook_missed_is_counted(server, webhook, cluster, service):
    numbers = count()

    def missed():
        """Create one more pod, as the service may not lead yet."""
        name = f"missed-{next(numbers)}"
        cluster.paused.add(name)
        document = api_pod(pod(name), phase="Pending")
        document["metadata"]["labels"] = {LABEL: OPT_IN}
        server.put(document)
        return service.metrics.registry.get_sample_value("alignup_gate_missed_pods_total")

    await until(missed)

"""Notifications to systemd."""

import socket
import uuid

import pytest

from alignup.agent.daemon import Notifier


@pytest.fixture(params=["a file", "a name of the kernel's"])
def listener(request, tmp_path):
    address = str(tmp_path / "notify") if request.param == "a file" else f"@alignup-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address.replace("@", "\0"))
        received.settimeout(60)
        yield address, received


def test_messages_arrive_together(listener):
    address, received = listener
    notifier = Notifier.of_environment({"NOTIFY_SOCKET": address}, pid=1)

    events = notifier.send("READY=1", "STATUS=12 pods\nare here")

    assert events
    assert received.recv(1000) == b"READY=1\nSTATUS=12 pods are here"


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        pytest.param({}, None, id="no socket"),
        pytest.param({"WATCHDOG_USEC": "3000000"}, None, id="a watchdog without a socket"),
        pytest.param({"NOTIFY_SOCKET": "/x"}, None, id="no watchdog"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000"}, 3.0, id="a watchdog"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0, id="ours"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None, id="another's"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None, id="no number"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None, id="an interval of zero"),
    ],
)
def test_the_watchdog_interval_comes_from_the_environment(environment, seconds):
    assert Notifier.of_environment(environment, pid=7).watchdog == seconds


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "@no-such-socket"])
def test_a_missing_socket_is_not_an_error(address):
    assert not Notifier.of_environment({"NOTIFY_SOCKET": address}, pid=1).send("WATCHDOG=1")

"""What systemd hears."""

import os
import socket

import pytest

from alignup.agent.sd_notify import READY, WATCHDOG, Notifier, status_line


@pytest.fixture(params=["a file", "a name of the kernel's"])
def listener(request, tmp_path):
    address = str(tmp_path / "notify") if request.param == "a file" else f"@alignup-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(address.replace("@", "\0"))
        heard.settimeout(5)
        yield address, heard


def test_messages_arrive_together(listener):
    address, heard = listener
    notifier = Notifier.of_environment({"NOTIFY_SOCKET": address}, pid=1)

    told = notifier.send(READY, status_line("12 pods\nare here"))

    assert told
    assert heard.recv(1000) == b"READY=1\nSTATUS=12 pods are here"


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        pytest.param({}, None, id="nobody listens"),
        pytest.param({"WATCHDOG_USEC": "3000000"}, None, id="a watchdog that nobody listens for"),
        pytest.param({"NOTIFY_SOCKET": "/x"}, None, id="no watchdog"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000"}, 3.0, id="a watchdog"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0, id="ours"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None, id="another's"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None, id="no number"),
        pytest.param({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None, id="at once, which nobody could"),
    ],
)
def test_who_wants_signs_of_life(environment, seconds):
    assert Notifier.of_environment(environment, pid=7).watchdog == seconds


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "@nobody-is-here"])
def test_that_nobody_listens_is_no_error(address):
    assert not Notifier.of_environment({"NOTIFY_SOCKET": address}, pid=1).send(WATCHDOG)

"""An API server as a process: ``python -m alignup.testing.api_server --help``.

It prints its address once it listens, and runs until SIGTERM or SIGINT. Its script has these actions, besides
``crash`` (``alignup.testing.script``):

    {"after": 0, "do": "fault", "verb": "list", "resource": "pods", "status": 503, "times": 2}
    {"after": 1, "do": "put", "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-a"}}}
    {"after": 1, "do": "remove", "resource": "pods", "name": "web", "namespace": "default"}
    {"after": 5, "do": "disconnect"}
    {"after": 5, "do": "expire", "watches": true}
    {"after": 5, "do": "bookmark"}
    {"after": 5, "do": "hold", "held": true}

``fault`` takes the fields of ``ApiFault``. The other actions are methods of ``ApiServer``.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from alignup.align.errors import ParseError
from alignup.testing import script
from alignup.testing.api_server.faults import ApiFault
from alignup.testing.api_server.server import ApiServer
from alignup.testing.script import Action, Actions, Arguments, fault_action


def _put(server: ApiServer, step: Arguments) -> None:
    server.put(step["object"])


ACTIONS: Actions[ApiServer] = {
    "fault": fault_action(ApiFault, ApiServer.inject, optional={"verb": str, "resource": str}),
    "put": Action(_put, required={"object": dict}),
    "remove": Action(
        lambda server, step: server.remove(**step), required={"resource": str, "name": str}, optional={"namespace": str}
    ),
    "disconnect": Action(lambda server, _: server.disconnect()),
    "expire": Action(lambda server, step: server.expire(**step), optional={"watches": bool}),
    "bookmark": Action(lambda server, _: server.bookmark()),
    "hold": Action(lambda server, step: server.hold(**step), optional={"held": bool}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m alignup.testing.api_server",
        description="A Kubernetes API server for tests, on 127.0.0.1, without TLS, validation or controllers.",
        epilog="example: python -m alignup.testing.api_server --kubeconfig config -f nodes.json & "
        "kubectl --kubeconfig config get nodes",
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="(default: a free one)")
    add("--kubeconfig", type=Path, metavar="FILE", help="write a kubeconfig for the server to FILE")
    files = "objects it has: JSON, or a List"
    add("-f", "--filename", type=Path, action="append", default=[], metavar="FILE", help=files)
    add("--script", type=Path, metavar="FILE", help="timed actions (alignup.testing.api_server.__main__)")
    options = parser.parse_args(arguments)

    async def report(server: ApiServer) -> None:
        if options.kubeconfig:
            server.write_kubeconfig(options.kubeconfig)
        sys.stdout.write(f"listening on {server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    try:
        return script.main(lambda: _server(options), ACTIONS, file=options.script, report=report)
    except OSError as error:
        sys.stderr.write(f"cannot listen on port {options.port}: {error.strerror}\n")
        return 2


def _server(options: argparse.Namespace) -> ApiServer:
    server = ApiServer(port=options.port)
    for path in options.filename:
        try:
            document = json.loads(path.read_text("utf-8"))
            for obj in document["items"] if document["kind"] == "List" else [document]:
                server.put(obj)
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise ParseError(f"{path}: not a Kubernetes object that this server knows: {error!r}") from None
    return server


if __name__ == "__main__":
    sys.exit(main())

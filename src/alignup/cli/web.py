"""``alignup web``: print a link to the agent's web pages."""

import click

from alignup.cli import terminal
from alignup.cli.agent_client import AgentOptions, connect
from alignup.cli.app import FailureError, define_command
from alignup.cli.options import output_option, with_options
from alignup.web.agent_client import AgentError


@define_command("web", "alignup web", "alignup web --open")
@click.option("--open", "opens", is_flag=True, help="Also open it in the browser of this machine.")
@with_options("agent", AgentOptions)
@output_option("text", "json", "yaml")
def command(*, agent: AgentOptions, opens: bool, output: str) -> None:
    """Print a link to the web pages of the agent, which signs one browser in.

    The link is valid once, for ten minutes. The agent serves pages at --web-listen, or at --listen with a port.
    The exit code is 1 when no agent answers, or when it serves no pages.
    """
    client = connect(agent)
    try:
        link = client.post("/v1/sign-in-links")
    except AgentError as error:
        if error.status != 404:
            raise
        raise FailureError(*error.problems, advice="Start the agent with --web-listen.") from error
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, link)
    else:
        terminal.print_line(link["url"])
    if opens:
        click.launch(link["url"])

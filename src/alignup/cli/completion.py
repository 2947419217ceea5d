"""``alignup completion``: print a shell's completion script."""

import click
from click.shell_completion import get_completion_class

from alignup.cli.app import app, define_command
from alignup.cli.entry import COMPLETE


@define_command("completion", "alignup completion bash > alignup.bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes alignup's commands and options in SHELL.

    \b
    ~/.bashrc                    eval "$(alignup completion bash)"
    ~/.zshrc                     eval "$(alignup completion zsh)"
    ~/.config/fish/config.fish   alignup completion fish | source
    """  # noqa: D301 - \b is click's mark for preformatted text
    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"click does not support completion for {shell}")
    click.echo(completion(app, {}, "alignup", COMPLETE).source())

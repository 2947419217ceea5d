"""``alignup completion``: the lines that teach a shell our commands and options."""

import click

from alignup.cli.app import debug_option, examples
from alignup.cli.entry import COMPLETE


@click.command(
    short_help="Completion of commands and options for your shell.",
    epilog=examples("alignup completion bash > alignup.bash"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def command(shell: str) -> None:
    """Print the lines that make SHELL complete the commands, options and choices of alignup.

    \b
    ~/.bashrc                    eval "$(alignup completion bash)"
    ~/.zshrc                     eval "$(alignup completion zsh)"
    ~/.config/fish/config.fish   alignup completion fish | source
    """  # noqa: D301 - a mark for click, not a backslash
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - for this command alone

    from alignup.cli.app import app  # noqa: PLC0415 - it lists this command

    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"{shell} cannot be taught")
    click.echo(completion(app, {}, "alignup", COMPLETE).source())

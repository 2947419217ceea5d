"""``alignup completion``: print a shell's completion script."""

import click

from alignup.cli.app import COMMANDS, debug_option, examples
from alignup.cli.entry import COMPLETE


@click.command(short_help=COMMANDS["completion"], epilog=examples("alignup completion bash > alignup.bash"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def command(shell: str) -> None:
    """Print the script that completes alignup's commands and options in SHELL.

    \b
    ~/.bashrc                    eval "$(alignup completion bash)"
    ~/.zshrc                     eval "$(alignup completion zsh)"
    ~/.config/fish/config.fish   alignup completion fish | source
    """  # noqa: D301 - \b is click's mark for preformatted text
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only for this command

    from alignup.cli.app import app  # noqa: PLC0415

    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"click does not support completion for {shell}")
    click.echo(completion(app, {}, "alignup", COMPLETE).source())

"""``alignup completion``: print a shell's completion script."""

from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

from alignup.cli.app import KUBECTL, app, define_command
from alignup.cli.entry import COMPLETE

_COMPLETE_FILES, _COMPLETE_NO_FILES = ":0", ":4"  # directives of kubectl's completion
SHELLS = ("bash", "zsh", "fish")


@define_command("completion", "alignup completion bash > alignup.bash")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes alignup's commands, options, files, pods and nodes in SHELL.

    A wheel installs the scripts where shells look for them. Otherwise, add a line:

    \b
    ~/.bashrc                    eval "$(alignup completion bash)"
    ~/.zshrc                     eval "$(alignup completion zsh)"
    ~/.config/fish/config.fish   alignup completion fish | source
    """  # noqa: D301 - \b is click's mark for preformatted text
    click.echo(completion_script(shell))


def kubectl_completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of *words*, then a directive, as kubectl expects them of a plugin."""
    from alignup.cli.cluster import command as cluster  # noqa: PLC0415 - only for kubectl

    *complete, incomplete = words or [""]
    items = ShellComplete(cluster, {}, KUBECTL, COMPLETE).get_completions(list(complete), incomplete)
    lines = [f"{item.value}\t{item.help}" if item.help else item.value for item in items if item.type == "plain"]
    wants_files = any(item.type == "file" for item in items)
    return [*lines, _COMPLETE_FILES if wants_files else _COMPLETE_NO_FILES]


def completion_script(shell: str) -> str:
    """Return the script without starting the shell, which click does to ask for its version."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.ClickException(f"click does not support completion for {shell}")
    completion = completion_class(app, {}, "alignup", COMPLETE)
    return completion.source_template % completion.source_vars()

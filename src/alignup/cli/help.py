"""``alignup help``: show the help of a command."""

import click

from alignup.cli.app import HELP_OPTIONS, app, define_command


@define_command("help", "alignup help", "alignup help cluster why")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def command(*, words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or list all commands. It is the same as COMMAND --help."""
    group: click.Command = app
    context = click.Context(group, info_name="alignup", help_option_names=HELP_OPTIONS)
    for word in words:
        subcommand = group.get_command(context, word) if isinstance(group, click.Group) else None
        if subcommand is None:
            raise (
                click.NoSuchCommand(word, ctx=context)
                if isinstance(group, click.Group)
                else click.UsageError(f"{context.command_path} has no commands")
            )
        context = click.Context(subcommand, parent=context, info_name=word)
        group = subcommand
    click.echo(group.get_help(context))

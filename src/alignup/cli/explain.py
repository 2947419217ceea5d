"""``alignup explain``: print what a reason code means, an example, and what to do about it."""

from dataclasses import asdict
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from alignup.align.reason_codes import REASON_CODES, find_reason
from alignup.cli import terminal
from alignup.cli.app import InputError, define_command
from alignup.cli.layout import paragraph, print_table
from alignup.cli.options import output_option

VERSION = 1  #: of the JSON document


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(code) for code in sorted(REASON_CODES) if code.startswith(incomplete)]


@define_command("explain", "alignup explain TopologyAffinityError", "alignup explain -o json")
@click.argument("codes", nargs=-1, metavar="[CODE]...", shell_complete=_complete)
@output_option("text", "json", "yaml")
def command(*, codes: tuple[str, ...], output: str) -> None:
    """Print what a reason code means, an example, and what to do; without CODE, list all codes.

    Pods, events, metrics and webhook warnings have these codes, and so has the output of 'why', 'check' and 'doctor'.
    To explain the decision on a pod, use 'alignup why'.
    """
    reasons = []
    for code in codes:
        if (reason := find_reason(code)) is None:
            close = get_close_matches(code, REASON_CODES, n=3, cutoff=0.5)
            advice = f"Did you mean {' or '.join(close)}?" if close else "'alignup explain' lists all codes."
            raise InputError(f"there is no reason code {code!r}", advice=advice)
        reasons.append(reason)
    shown_reasons = reasons or sorted(REASON_CODES.values(), key=lambda reason: reason.code.lower())
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, {"version": VERSION, "codes": [asdict(reason) for reason in shown_reasons]})
    elif not codes:
        print_table(("CODE", "MEANING"), [(reason.code, reason.meaning) for reason in shown_reasons])
    for reason in reasons if output == "text" else ():
        terminal.print_lines(paragraph(reason.code, style="title"))
        for prefix, text in (("", reason.meaning), ("Example: ", reason.example), ("→ ", reason.remedy)):
            terminal.print_lines(paragraph(text, prefix=f"  {prefix}"))

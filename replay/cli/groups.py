"""The commands and their groups. A command's module is imported when it runs, never for the help of its group.

So ``pplx-state --help`` answers at once, and on a machine that has neither torch nor a model.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click

from replay.cli.console import Group


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives ("module:attribute"), and the line that stands for it in the help of its group."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is {type(command).__name__}, not a click command")
        return command


class LazyGroup(Group):
    """A group that knows its commands by a table, and imports one when it is called."""

    def __init__(self, *, name: str, help: str, lazy: Mapping[str, LazyCommand] | None = None) -> None:
        super().__init__(name=name, help=help, no_args_is_help=True, params=[version_option()])
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table: the order in which a reader needs them."""
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            return self.lazy[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=100)) for name, command in self.commands.items()]
        rows += [(name, command.summary) for name, command in self.lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        known = name in self.lazy or name in self.commands
        if not known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}.{_did_you_mean(name, self.paths())}")
        return super().resolve_command(ctx, args)

    def paths(self) -> list[str]:
        """Every command below this group, such as "state verify"."""
        found = [*self.commands, *self.lazy]
        for name, command in self.commands.items():
            if isinstance(command, LazyGroup):
                found += [f"{name} {path}" for path in command.paths()]
        return found


def _did_you_mean(name: str, paths: list[str]) -> str:
    """Compares last words, so that ``pplx verify`` leads to "state verify"."""
    words = [path.rsplit(" ", 1)[-1] for path in paths]
    near = set(difflib.get_close_matches(name, words, n=3, cutoff=0.6))
    named = [path for path, word in zip(paths, words, strict=True) if word in near]
    return f" Did you mean {' or '.join(named)}?" if named else ""


def version_option() -> click.Option:
    """``--version``; it works in a source tree that was never installed, too."""

    def show(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
        if wanted:
            try:
                version = installed_version("pplx-replay")
            except PackageNotFoundError:
                version = "unknown (run from a source tree)"
            click.echo(f"pplx-replay {version}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version and exit."
    )


REPLAY_HELP = """Re-run the inference that a dump recorded, and say whether the same failure came back.

\b
Examples:
  pplx-replay demo                          a crash and its replay, from nothing
  pplx-replay run crash.pplx                the verdict on a dump
  pplx-replay run crash.pplx --set kv.num_blocks=64 --expect not-reproduced
  pplx-replay models pull smollm2-135m      fetch the weights of the demo

\b
Exit codes of a replay:
  0 reproduced (or --expect met)   10 not reproduced   11 different failure
  12 diverged   13 reproduced, though something else was expected
  20 inconclusive   21 budget spent   2 usage   4 bad dump   70 our own error
"""

STATE_HELP = """Look into a dump, check it, or recover one that a dead process left behind. Needs no model.

\b
Examples:
  pplx-state dump crash.pplx                        what the process was doing
  pplx-state dump crash.pplx --field failures --json
  pplx-state verify crash.pplx                      checksums and invariants
  pplx-state recover flight.ring                    a dump of a process that was killed
"""

PPLX_HELP = """Crash replay for LLM inference: take the dump of a failed serving process, re-run it, get a verdict.

\b
Examples:
  pplx replay demo
  pplx replay run crash.pplx
  pplx state verify crash.pplx
"""

SERVER = LazyCommand("replay.cli.server:server", "Serve a model over the OpenAI API; a failure leaves a dump.")

SANITY_CHECK = LazyCommand("replay.cli.state_sanity_check:sanity_check", "Check the state keys of Python modules.")

replay = LazyGroup(
    name="replay",
    help=REPLAY_HELP,
    lazy={
        "demo": LazyCommand("replay.cli.demo:demo", "Crash a real server, then replay its dump: the whole loop."),
        "run": LazyCommand("replay.cli.run:run", "Re-run a dump and print the verdict."),
        "batch": LazyCommand("replay.cli.batch:batch", "Re-run many dumps at once: a report each, a table of all."),
        "minimise": LazyCommand("replay.cli.minimise:minimise", "Find the smallest run that shows a dump's failure."),
        "fuzz": LazyCommand("replay.cli.fuzz:fuzz", "Search near dumps for failures that they do not show."),
        "why": LazyCommand("replay.cli.why:why", "Tell which setting a failure needs: one thing changed at a time."),
        "fixture": LazyCommand("replay.cli.fixture:fixture", "Keep dumps in a test suite, and check those kept there."),
        "serve": LazyCommand("replay.cli.serve:serve", "Replay dumps over HTTP on this machine."),
        "models": LazyCommand("replay.cli.models:models", "List, fetch and locate model weights."),
    },
)

state = LazyGroup(
    name="state",
    help=STATE_HELP,
    lazy={
        "dump": LazyCommand("replay.cli.state_dump:dump", "Show what a dump holds."),
        "verify": LazyCommand("replay.cli.state_verify:verify", "Check a dump's checksums and invariants."),
        "redact": LazyCommand("replay.cli.state_redact:redact", "Take secrets and people's text out of a dump."),
        "recover": LazyCommand(
            "replay.cli.state_recover:recover", "Make a dump from a dead process's flight recorder."
        ),
    },
)

pplx = LazyGroup(name="pplx", help=PPLX_HELP, lazy={"server": SERVER})
pplx.add_command(replay)
pplx.add_command(state)


def server() -> None:
    """Run ``pplx-server``: the command of the group `pplx`, with a version of its own."""
    command = SERVER.load()
    command.params.append(version_option())
    command(prog_name="pplx-server")


def sanity_check() -> None:
    """Run ``pplx-state-sanity-check``, which only pre-commit calls: it is in no group."""
    command = SANITY_CHECK.load()
    command.params.append(version_option())
    command(prog_name="pplx-state-sanity-check")

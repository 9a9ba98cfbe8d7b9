"""The dump of a load that was made up, which says so."""

from __future__ import annotations

from pathlib import Path

from dumps import ledger
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from replay.fuzz.limits import most_steps
from replay.scenario.change import with_answers
from replay.scenario.play import Player, play
from replay.scenario.record import record
from replay.scenario.scenario import Scenario
from replay.signature import Identity


def recorded(
    scenario: Scenario,
    path: Path,
    like: pb.RuntimeState,
    player: Player | None,
    *,
    wanted: Identity | None,
    change: str = "",
) -> None:
    """Write the dump of a play to ``path``, as `replay.scenario.record.record`, which tells what it raises.

    Without a ``player`` the answers are filler, and the dump has it: who shares a prefix with whom depends on it. The
    ledger says what was made up.
    """
    most = most_steps(scenario)
    if player is None:
        scenario = with_answers(scenario, play(scenario, max_steps=most).answers)
    drawn = path.with_name(f"{path.name}.drawn")
    try:
        record(scenario, drawn, like, player, wanted=wanted, max_steps=most)
        with open_dump(drawn) as dump:
            sections = [
                SectionData(kind=one.kind, data=dump.read_section(one.kind), dtype=one.dtype, shape=tuple(one.shape))
                for one in dump.sections
            ]
            state = dump.state
    finally:
        drawn.unlink(missing_ok=True)
    origin = f"dump {like.manifest.id}"
    note = f"made up by pplx-replay fuzz beside those of {origin}" + (f": {change}" if change else "")
    ledger.record(state, "requests", pb.SYNTHESISED, note)
    if player is None:
        ledger.record(state, "requests[].output_token_ids", pb.SYNTHESISED, "filler: no model drew them")
    write_dump(path, state, sections)

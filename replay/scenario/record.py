"""Plays a scenario with the flight recorder attached, and writes the dump of the failure that is wanted.

Two recordings of one scenario give the same state, the model's numbers being the same. The dump's id is made of the
scenario, the wanted failure and whether a model played it. Its making's time, process and machine are those of the dump
it is ``like``, and the times of steps, arrivals and failures are counted, a millisecond a step, which the ledger says.
What differs: at record level shape the hashes of a prefix cache, whose key is drawn and thrown away; and with a model
the platform, which is the one that computed.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dumps.errors import DumpError
from dumps.ledger import record as grade
from dumps.record.image import read_ring
from dumps.record.recorder import RecordLevel
from dumps.record.ring import MAX_RING
from dumps.record.state import state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.schema.publish import published
from dumps.schema.writer import SectionData, write_dump
from replay.errors import UsageError
from replay.scenario.answers import RecordedAnswers
from replay.scenario.play import MAX_STEPS, Ended, Played, Player, played
from replay.scenario.scenario import Scenario
from replay.scenario.stage import Stage
from replay.scenario.tape import Tape, open_recorder
from replay.serving.block_history import put_history
from replay.signature import Identity

RING_BYTES = 1 << 20
BEGIN_NS = 1_000_000_000
STEP_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A dump that was written, what is in it, and the play it is of."""

    path: Path
    state: pb.RuntimeState
    played: Played


def record(
    scenario: Scenario,
    path: Path,
    like: pb.RuntimeState,
    player: Player | None = None,
    *,
    wanted: Identity | None = None,
    max_steps: int = MAX_STEPS,
) -> Recorded:
    """Write a dump of the play to ``path``, which must not exist: of the moment of the ``wanted`` failure, or, without
    one, of the play's end.

    Model, platform, versions and process are said to be those of the dump ``like``, that the scenario was taken from.
    Without a ``player`` the dump has the token ids that were on record; where an answer went on beyond its record, it
    has its length only.

    Raises:
        UsageError: the play does not show the wanted failure, or a model cannot compute it.
        DumpError: the dump exists, or cannot be written. No half of it is left.
    """
    known = any(visit.has_prompt_ids for visit in scenario.visits)
    level = RecordLevel.TOKENS if known else RecordLevel.SHAPE
    with tempfile.TemporaryDirectory(prefix="pplx-play-") as folder:
        ring_bytes, take = RING_BYTES, _Take(scenario, like, player, level, Path(folder))
        while not take.play(ring_bytes, wanted, max_steps) and ring_bytes < MAX_RING:
            ring_bytes *= 4  # it has wrapped
        if wanted is not None and take.ended is not Ended.WANTED:
            raise UsageError(
                f"the scenario does not show the wanted failure ({wanted.kind}, {wanted.invariant or wanted.message})",
                remedy="play it first: what does not come back cannot be recorded",
            )
        state, sections = take.state, take.sections
    _describe(state, scenario, like, player, wanted)
    _take_out_guesses(state, scenario, take.answers)
    try:
        with published(path) as part:
            write_dump(part, state, sections)
    except FileExistsError:
        raise DumpError(f"{path} exists already", remedy="Choose another name, or move the file away.") from None
    return Recorded(path=path, state=state, played=take.result)


class _Take:
    """A play on record. Another one begins from nothing."""

    def __init__(
        self, scenario: Scenario, like: pb.RuntimeState, player: Player | None, level: RecordLevel, folder: Path
    ) -> None:
        self._scenario, self._like, self._player, self._level, self._folder = scenario, like, player, level, folder

    def play(self, ring_bytes: int, wanted: Identity | None, max_steps: int) -> bool:
        """Play, and read the record back. Returns whether all steps are in it."""
        scenario, ring = self._scenario, self._folder / f"{ring_bytes}.ring"
        self.answers = RecordedAnswers(scenario)
        parts = self.answers.parts() if self._player is None else self._player.parts(scenario)
        recorder = open_recorder(
            ring, scenario, level=self._level, ring_bytes=ring_bytes, bytes_per_block=parts.bytes_per_block
        )
        stage = Stage(scenario, parts, lambda scheduler: Tape(recorder, scheduler, self._like))
        self.ended = stage.run(wanted=wanted, max_steps=max_steps, late=lambda: False)
        tape = stage.recorder
        assert isinstance(tape, Tape)
        if stage.wanted is not None and stage.wanted is not stage.failures[-1]:
            tape.failed(stage.wanted)  # the last one of a dump is the one that a replay must show
        self.result = played(stage, self.ended, guessed_from=self.answers.guessed_from)
        if tape.broken:
            raise DumpError("the flight recorder failed, and its log says why")
        self.state = state_from_ring(read_ring(ring), reason=wanted.kind if wanted is not None else "demand")
        tape.close()
        ring.unlink()
        if stage.checks is not None:
            put_history(stage.checks.history, self.state)
        self.sections: list[SectionData] = stage.watch.collect().put(self.state) if stage.watch is not None else []
        return len(self.state.steps) == stage.steps + stage.raised


def _describe(
    state: pb.RuntimeState, scenario: Scenario, like: pb.RuntimeState, player: Player | None, wanted: Identity | None
) -> None:
    """Fill in what a ring is told by its process, and put counted times in place of ours."""
    state.active_model = like.active_model
    state.model.CopyFrom(like.model)
    _describe_engine(state, scenario, like)
    manifest = pb.Manifest()
    manifest.CopyFrom(like.manifest)
    manifest.reason, manifest.record_level = state.manifest.reason, state.manifest.record_level
    key = f"{scenario.digest} {wanted} {'inference' if player is not None else 'schedule'}"
    manifest.id = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    state.manifest.CopyFrom(manifest)
    if player is None or not player.digests:
        state.manifest.debug_level = min(like.manifest.debug_level, 1)
    if player is not None:
        player.describe(state)
    _count_times(state)
    origin = f"dump {like.manifest.id}, whose run this is a variation of"
    for name in ("created_ns", "versions", "launch_arguments", "pid"):
        grade(state, f"manifest.{name}", pb.INFERRED, f"as in {origin}")
    for name in ("threads", "exceptions"):
        grade(state, name, pb.ABSENT, f"a played scenario has none; see {origin}")
    if player is None:
        grade(state, "requests[].output_token_ids", pb.SYNTHESISED, f"as in {origin}: no model drew them here")


def _describe_engine(state: pb.RuntimeState, scenario: Scenario, like: pb.RuntimeState) -> None:
    config, engine = scenario.config, state.engine
    engine.CopyFrom(like.engine)
    engine.block_size, engine.num_blocks = config.block_size, config.num_blocks
    engine.max_model_len, engine.max_num_seqs = config.max_model_len, config.max_num_seqs
    engine.max_num_batched_tokens = config.max_num_batched_tokens
    engine.on_kv_exhausted = config.on_kv_exhausted.value
    engine.prefix_cache, engine.kv_quant_bits = config.prefix_cache, config.kv_quant_bits
    engine.checks = scenario.checks
    del state.model.eos_token_ids[:]
    state.model.eos_token_ids.extend(scenario.eos_token_ids)
    kv = state.kv
    kv.num_layers, kv.num_kv_heads, kv.head_dim = like.kv.num_layers, like.kv.num_kv_heads, like.kv.head_dim
    kv.dtype, kv.quant_bits = like.kv.dtype, config.kv_quant_bits
    for quirk in scenario.quirks:
        state.quirks.add(name=quirk.name, detail=quirk.detail)


def _count_times(state: pb.RuntimeState) -> None:
    end = state.scheduler.next_step + 1
    for request in state.requests:
        arrived = request.arrival_step if request.HasField("arrival_step") else end
        request.arrival_ns = BEGIN_NS + arrived * STEP_NS
    for step in state.steps:
        step.start_ns = BEGIN_NS + step.index * STEP_NS
    for failure in state.failures:
        failure.time_ns = BEGIN_NS + (failure.step + 1 if failure.HasField("step") else 0) * STEP_NS
    state.manifest.wall_minus_monotonic_ns = state.manifest.created_ns - BEGIN_NS - end * STEP_NS
    for path in ("requests[].arrival_ns", "steps[].start_ns", "failures[].time_ns"):
        grade(state, path, pb.SYNTHESISED, "counted, a millisecond a step")


def _take_out_guesses(state: pb.RuntimeState, scenario: Scenario, answers: RecordedAnswers) -> None:
    """Take out what only stood for a token id. Lengths stay."""
    # Requests stand in order of arrival, as visits do.
    pairs = list(zip(state.requests, scenario.visits, strict=False))
    prompts = [request for request, visit in pairs if not visit.has_prompt_ids]
    outputs = {
        place
        for place, (_, visit) in enumerate(pairs)
        if visit.id in answers.guessed or (answers.used and not visit.has_output_ids)
    }
    if state.manifest.record_level == RecordLevel.SHAPE.value or not (prompts or outputs):
        return
    for request in prompts:
        request.ClearField("prompt_token_ids")
    for place in outputs:
        state.requests[place].ClearField("output_token_ids")
    for step in state.steps:
        for chunk in step.scheduled:
            if chunk.request in outputs:
                chunk.ClearField("sampled_token")
    if prompts:
        note = f"of {len(prompts)} requests: they were not on record"
        grade(state, "requests[].prompt_token_ids", pb.ABSENT, note)
    if outputs:
        note = f"of {len(outputs)} requests: without a model nobody knows how their answers went on"
        grade(state, "requests[].output_token_ids", pb.ABSENT, note)

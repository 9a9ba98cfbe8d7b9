"""Questions from a dump to the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumps.schema.writer import write_dump
from dumps.tensors import from_le32, le32
from replay.errors import UsageError
from replay.isolate.result import Result
from replay.why.change import Change
from replay.why.effect import Effect, Trial
from replay.why.options import NotReproduced, Options
from replay.why.why import pairs_of, why
from tests.fixture_folders import FIXTURES
from tests.incidents import MODEL, incident
from tests.replay.why.asking import Here, asked, effects

OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"
FULL_POOL = {
    "kv.num_blocks=72": "vanishes",
    "scheduler.on_kv_exhausted=preempt": "vanishes",
    "scheduler.on_kv_exhausted=raise": "another failure",
    "scope=request": "cannot tell",
    "schedule=live": "stays",
    "scheduler.max_num_seqs=1": "vanishes",
}


def test_a_full_pool_needs_its_size_its_policy_and_its_load():
    outcome = asked(OVERFLOW, target="schedule")
    assert effects(outcome.singles) == FULL_POOL
    assert outcome.words[0] == (
        "The failure needs a KV pool of fewer than 72 blocks, the policy truncate and several requests running at "
        "once together: any of them changed (kv.num_blocks=72, scheduler.on_kv_exhausted=preempt or "
        "scheduler.max_num_seqs=1), and it is gone."
    )
    assert (outcome.pairs, outcome.complete) == ([], True)
    assert {one.what for one in outcome.left if one.applies} == {"kernels=stock", "model.dtype=float32"}


def test_pairs_of_what_is_still_failing_are_tried_on_request():
    outcome = asked(OVERFLOW, target="schedule", pairs=True)
    tried = {trial.name for trial in outcome.pairs}
    assert tried == {"scheduler.on_kv_exhausted=raise and schedule=live"}


def test_a_leak_needs_its_defect_and_the_cache_together(leak, tiny):
    outcome = asked(leak, model=tiny, numbers=False)
    found = effects(outcome.singles)
    assert {name for name, effect in found.items() if effect == "vanishes"} == {
        "quirk.prefix-leak=off",
        "scheduler.prefix_cache=false",
        "scheduler.max_num_seqs=1",
    }
    assert found["kv=recompute"] == found["kernels=stock"] == "stays"
    assert outcome.words[0].startswith("The failure needs the defect prefix-leak, the prefix cache and")


def test_two_faults_take_two_changes(two_faults, tiny):
    outcome = asked(two_faults, model=tiny, numbers=False)
    singles = effects(outcome.singles)
    assert "vanishes" not in singles.values()
    assert singles["quirk.free-block-reuse=off"] == "stays"
    assert singles["kv.num_blocks=8"] == "another failure"
    gone = [trial.name for trial in outcome.pairs if trial.effect is Effect.VANISHES]
    assert gone == ["quirk.free-block-reuse=off and kv.num_blocks=8"]
    assert outcome.words[0] == (
        "No single change gives a run without a failure. quirk.free-block-reuse=off and kv.num_blocks=8 together do: "
        "with kv.num_blocks=8 alone another failure shows (contamination (slot-freed) at request r0, step 13), and "
        "that one needs the defect free-block-reuse."
    )


def test_without_weights_scheduler_and_block_pool_are_asked():
    outcome = asked(FIXTURES / "kv-exhaust" / "dump.pplx")
    assert outcome.target == "schedule"
    assert outcome.notes[0].startswith("on scheduler and block pool alone: no weights of")
    assert outcome.no_numbers == "no model ran"
    assert any(one.what == "kernels=stock" and one.applies for one in outcome.left)


def test_a_setting_of_ones_own_is_tried_and_one_that_is_tried_anyway_only_once():
    outcome = asked(OVERFLOW, target="schedule", extra=("kv.num_blocks=37", "scheduler.max_num_seqs=1"))
    found = effects(outcome.singles)
    assert set(found) == {*FULL_POOL, "kv.num_blocks=37"}
    assert found["scheduler.max_num_seqs=1"] == "vanishes"


def test_a_limit_on_running_requests_takes_a_schedule_of_its_own():
    outcome = asked(OVERFLOW, target="schedule", extra=("scheduler.max_num_seqs=2",))
    (trial,) = [one for one in outcome.singles if one.name == "scheduler.max_num_seqs=2"]
    assert trial.to_json()["arguments"] == "--set scheduler.max_num_seqs=2 --schedule live"
    assert trial.effect is Effect.VANISHES


def test_a_dump_that_does_not_reproduce_is_not_asked(tmp_path):
    with pytest.raises(NotReproduced, match="needs-inference") as raised:
        asked(FIXTURES / "nan-block" / "dump.pplx", target="schedule")
    assert raised.value.exit_code == 20
    state, sections = incident("nan-block")
    tokens = from_le32(state.requests[0].output_token_ids)
    state.requests[0].output_token_ids = le32([tokens[0] + 1, *tokens[1:]])
    write_dump(tmp_path / "other.pplx", state, sections)
    with pytest.raises(NotReproduced, match="does not reproduce 1 of 1: diverged") as raised:
        asked(tmp_path / "other.pplx", model=MODEL, repeat=1)
    assert raised.value.exit_code == 12


def test_a_dump_without_a_failure_is_not_asked(tmp_path):
    state, sections = incident("kv-overflow")
    del state.failures[:]
    write_dump(tmp_path / "healthy.pplx", state, sections)
    with pytest.raises(NotReproduced, match="records no failure") as raised:
        asked(tmp_path / "healthy.pplx")
    assert raised.value.exit_code == 20


class Ending(Here):
    """Trials that end after two changes, by `end`."""

    end: BaseException | None = None
    changed_so_far = 0

    def changed(self, target: str, changes: Any) -> Result:
        self.changed_so_far += 1
        if self.changed_so_far > 2:
            if self.end is not None:
                raise self.end
            self._deadline = self.clock()
        return super().changed(target, changes)


class Interrupted(Ending):
    end = KeyboardInterrupt()


@pytest.mark.parametrize(("trials", "interrupted"), [(Ending, False), (Interrupted, True)])
def test_the_end_of_the_time_and_ctrl_c_keep_what_was_tried(trials, interrupted):
    outcome = why(Options(dump=OVERFLOW, target="schedule"), trials=trials)
    assert len(outcome.singles) == 2
    assert (outcome.complete, outcome.interrupted) == (False, interrupted)
    untried = {one.what for one in outcome.left if one.applies}
    assert {"schedule=live", "scheduler.max_num_seqs=1"} <= untried
    assert any("was interrupted" in line or "time was used up" in line for line in outcome.words)


def single(name: str, effect: Effect, *, subject: str = "", differ: bool = False, alone_only: bool = False) -> Trial:
    change = Change(settings={name: "1"}, subject=subject or name, needs=name, alone_only=alone_only)
    return Trial(changes=(change,), effect=effect, answers_differ=differ)


def test_pairs_begin_with_those_that_did_something_alone():
    singles = [
        single("a", Effect.STAYS),
        single("b", Effect.ANOTHER),
        single("c", Effect.STAYS, differ=True),
        single("d", Effect.VANISHES),
        single("e", Effect.CANNOT_TELL),
        single("f", Effect.STAYS, alone_only=True),
    ]
    pairs = [[change.subject for change in pair] for pair in pairs_of(singles)]
    assert pairs == [["b", "c"], ["a", "b"], ["a", "c"]]


def test_variants_of_one_change_are_no_pair():
    singles = [single("a", Effect.STAYS, subject="policy"), single("b", Effect.STAYS, subject="policy")]
    assert list(pairs_of(singles)) == []


PROGRAM = """
from dumps.record.seams.tools import tool

@tool
async def weather(place):
    await asyncio.sleep(0.6)

async def both():
    return await asyncio.gather(weather("here"), weather("there"))
"""


@pytest.fixture(scope="module")
def program(programs) -> tuple[Path, dict[str, Any]]:
    """A dump of a program that two tools had not answered when its time was over, and the options to replay it with."""
    name = programs.write(PROGRAM)
    target = {"target": f"app={name}:both", "app_path": (str(programs.folder),), "answers": "recorded"}
    return programs.record(name, "both", timeout=0.2), target


def test_a_program_that_waits_for_two_tools_does_well_once_both_have_answered(program):
    dump, target = program
    outcome = why(Options(dump=dump, repeat=1, **target))
    assert effects(outcome.singles) == {"tool.tool-1.result=null": "stays", "tool.tool-2.result=null": "stays"}
    assert [trial.effect for trial in outcome.pairs] == [Effect.VANISHES]
    assert outcome.words[0] == (
        "No single change gives a run without a failure. tool.tool-1.result=null and tool.tool-2.result=null together "
        "do: either the tool call tool-1 (weather) unanswered or the tool call tool-2 (weather) unanswered is enough "
        "for it, and both have to go."
    )
    assert outcome.no_numbers == "a program's numbers are its model's affair"


def test_a_program_is_asked_as_a_program(tmp_path):
    with pytest.raises(UsageError, match="that of a program") as caught:
        asked(FIXTURES / "tool-hang" / "dump.pplx", target="schedule")
    assert "pplx-replay why DUMP --target app=agent:answer" in caught.value.remedy


def test_an_answer_to_a_call_that_the_program_did_not_make_is_refused(program):
    dump, target = program
    with pytest.raises(UsageError, match="no such tool call") as raised:
        why(Options(dump=dump, extra=("tool.weather.result=1",), **target))
    assert "tool-1 (weather), tool-2 (weather)" in raised.value.remedy

"""Whether a modified replay says which answers it changed, and nothing of the kind where answers are not its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replay.engine.request import FinishCause, FinishReason, Request, SamplingParams, Status
from replay.engine.schedule import OnExhausted
from replay.targets.answers_changed import answers_changed
from replay.targets.job import run_job
from replay.targets.rebuild import RecordedOutput
from tests.mixing import random_tokens
from tests.recordings import record


def request(name: str, answer: list[int], cause: FinishCause | None) -> Request:
    made = Request(id=name, tokens=[1, 2, *answer], num_prompt=2, sampling=SamplingParams())
    if cause is not None:
        made.status, made.finish_reason, made.finish_cause = Status.FINISHED, FinishReason.STOP, cause
    return made


def output(answer: list[int] | None, cause: FinishCause | None, *, first_step: int = 3) -> RecordedOutput:
    length = 0 if answer is None else len(answer)
    steps = tuple(range(first_step, first_step + length))
    tokens = None if answer is None else tuple(answer)
    return RecordedOutput(num_tokens=length, drawn_before=0, steps=steps, tokens=tokens, digests={}, cause=cause)


EOS, CUT = FinishCause.EOS, FinishCause.KV_POOL_EXHAUSTED


@pytest.mark.parametrize(
    ("recorded", "replayed", "difference"),
    [
        (([5, 6, 7], None), ([5, 6, 7], None), None),
        (([5, 6, 7], None), ([5, 6], None), None),  # the replay ended before the answer did
        (([5, 6], None), ([5, 6, 7], EOS), None),  # the record ended before the answer did
        (([5, 6], EOS), ([5, 6], EOS), None),
        (([5, 6, 7], None), ([5, 9, 7], None), (1, 4, "token 6", "token 9")),
        (([5, 6], CUT), ([5, 6, 7], None), (2, None, "end (kv-pool-exhausted)", "token 7")),
        (([5, 6, 7], None), ([5, 6], EOS), (2, 5, "token 7", "end (eos)")),
    ],
)
def test_an_answer_is_compared_as_far_as_both_runs_went(recorded, replayed, difference):
    found = answers_changed([request("a", *replayed)], {"a": output(*recorded)})
    assert found["compared"] == 1
    assert found["as_recorded"] == (difference is None)
    first = found["first_difference"]
    keys = ("output_index", "step", "recorded", "replayed")
    assert (first and tuple(first[key] for key in keys)) == difference


def test_the_first_difference_is_the_first_in_time():
    requests = [request("late", [5, 9], None), request("early", [9, 6], None), request("blind", [1], None)]
    outputs = {
        "late": output([5, 6], None, first_step=10),
        "early": output([5, 6], None, first_step=2),
        "blind": output(None, None),
    }
    found = answers_changed(requests, outputs)
    assert (found["compared"], found["as_recorded"]) == (2, 0)
    assert (found["first_difference"]["request_id"], found["first_difference"]["step"]) == ("early", 2)


ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def cut(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three requests in a pool that is too small for them: one answer is cut."""
    prompts = [random_tokens(9 + index, 256, seed=index) for index in range(3)]
    folder = tmp_path_factory.mktemp("cut")
    options: dict[str, Any] = {"kv_blocks": 24, "block_size": 4, "record_kv": "live"}
    made = record(tiny, folder, prompts, sampling=ENDLESS, on_kv_exhausted=OnExhausted.TRUNCATE, **options)
    return made.dumps[0]


def replay(dump: Path, tiny: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(dump), "model": str(tiny), **options}, lambda _: None)


def test_a_modified_replay_tells_whether_answers_changed(cut, tiny):
    more_blocks = replay(cut, tiny, set={"kv.num_blocks": 200, "model.max_model_len": 50})
    answers = more_blocks["answers"]
    assert (answers["compared"], answers["as_recorded"]) == (3, 2)
    first = answers["first_difference"]
    assert first["request_id"] == more_blocks["expected_signature"]["location"]["request_id"]
    assert (first["recorded"], first["replayed"][:6]) == ("end (kv-pool-exhausted)", "token ")
    other = replay(cut, tiny, set={"sampling.temperature": 2.0, "sampling.seed": 1})["answers"]
    assert other["as_recorded"] < other["compared"] == 3
    same = replay(cut, tiny, set={"sampling.top_k": 1})["answers"]  # greedy it was
    assert same == {"compared": 3, "as_recorded": 3, "first_difference": None}


def test_nothing_is_said_of_answers_that_are_not_the_replays_own(cut, tiny):
    more_blocks = {"kv.num_blocks": 96}
    assert replay(cut, tiny)["answers"] is None
    assert replay(cut, tiny, set=more_blocks, mode="forced")["answers"] is None  # fed
    assert replay(cut, tiny, set=more_blocks, kv="restore")["answers"] is None  # restored
    assert replay(cut, tiny, set=more_blocks, target="schedule", model=None)["answers"] is None

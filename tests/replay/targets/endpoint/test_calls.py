"""From records to requests."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.seams.http_tap import GIVEN_UP
from dumps.schema import state_pb2 as pb
from dumps.tensors import le32
from replay.engine.failure import FailureKind
from replay.signature import Identity, Location, Signature
from replay.targets.endpoint.engine_calls import engine_calls
from replay.targets.endpoint.plan import BadPlan, Call, Plan, Recorded
from replay.targets.endpoint.program_calls import program_calls
from replay.verdict import Reason
from tests.small_dump import small_state


def test_a_sequence_becomes_a_request_with_its_ids_and_its_sampling():
    state = small_state()
    state.requests[1].arrival_ns = 1_500_000_000
    sampling = state.requests[1].sampling
    sampling.stop.append("END")
    sampling.top_k = 5
    sampling.seed = 2**64 - 1
    sampling.logit_bias.add(token_id=3, bias=-1.5)
    first, second = engine_calls(state, "m", None)
    assert (first.at_s, second.at_s) == (0.0, 1.5)
    assert second.path == "/completions"
    assert second.body == {
        "model": "m",
        "prompt": [4, 4],
        "max_tokens": 4,
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_k": 5,
        "seed": -1,
        "logit_bias": {"3": -1.5},
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert second.recorded == (
        Recorded(id="req-b", status="finished", finish_reason="length", prompt_len=2, output_len=1),
    )


def choices(*known: int) -> pb.RuntimeState:
    """A state with these choices of one request that asked for several, and one of another request."""
    state = small_state()
    del state.requests[:]
    for sample in known:
        state.requests.add(id=f"cmpl-1-{sample}", sample_index=sample, prompt_token_ids=le32([1]), num_prompt_tokens=1)
    state.requests.add(id="cmpl-2-0", prompt_token_ids=le32([1]), num_prompt_tokens=1)
    return state


def test_choices_of_one_request_are_asked_for_together():
    together, other = engine_calls(choices(0, 1, 2), "m", None)
    assert together.n == 3
    assert together.body is not None
    assert together.body["n"] == 3
    assert [one.id for one in together.recorded] == ["cmpl-1-0", "cmpl-1-1", "cmpl-1-2"]
    assert other.n == 1


def test_a_choice_that_the_recorder_forgot_is_asked_for_all_the_same():
    together, _ = engine_calls(choices(2), "m", None)
    assert together.n == 3
    assert [one.id for one in together.recorded] == ["", "", "cmpl-1-2"]


def test_two_prompts_of_one_request_are_two_requests():
    state = choices(0)
    state.requests.add(id="cmpl-1-1", prompt_token_ids=le32([2]), num_prompt_tokens=1)
    assert [call.n for call in engine_calls(state, "m", None)] == [1, 1, 1]
    state.requests[2].sample_index = 1  # as no server of ours numbers them
    assert [call.body and call.body["prompt"] for call in engine_calls(state, "m", None)] == [[1], [1], [2]]


def test_no_limit_asks_for_one_token_more_than_the_recorded_server_could_hold():
    state = small_state()
    state.requests[1].sampling.max_tokens = 0
    call = engine_calls(state, "m", None)[1]
    assert call.unlimited
    assert call.asked == 16 - 2 + 1


def test_a_client_that_hung_up_hangs_up_again():
    state = small_state()
    request = state.requests[1]
    request.finish_cause, request.arrival_ns, request.finish_step = "client-gone", 1_000, 2
    state.steps[2].start_ns = 2_000_001_000
    assert [call.abort_s for call in engine_calls(state, "m", None)] == [None, 2.0]


def exchange(
    number: int, *, body: dict[str, Any] | None = None, answer: dict[str, Any] | None = None, **fields
) -> pb.Exchange:
    made = pb.Exchange(
        id=f"x{number}",
        method="POST",
        url="http://model.test/openai/v1/chat/completions",
        request_body=json.dumps(body or {"model": "m", "messages": []}).encode(),
        direction="out",
        framing="body",
        status=200,
        started_ns=1_000_000_000 * number,
        ended_ns=1_000_000_000 * number + 500_000_000,
    )
    document = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]} if answer is None else answer
    made.chunks.add(data=json.dumps(document).encode())
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def program(*exchanges: pb.Exchange) -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.exchanges.extend(exchanges)
    return state


def test_requests_of_a_program_are_sent_word_for_word():
    odd = b'{ "model": "m",  "messages": [], "x": 1.0 }'
    first, second = exchange(1), exchange(2)
    second.request_body = odd
    planned = program_calls(program(second, first), None)
    assert [call.at_s for call in planned.calls] == [0.0, 1.0]
    assert planned.calls[1].verbatim == odd.decode()
    assert planned.calls[1].path == "/chat/completions"
    assert planned.calls[1].recorded == (Recorded(id="x2", status="200", finish_reason="stop", text="hi"),)
    assert planned.symptom is None
    renamed = program_calls(program(first), "other").calls[0].verbatim
    assert json.loads(str(renamed))["model"] == "other"


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (exchange(1, status=500, answer={"error": {"message": "boom"}}), FailureKind.EXCEPTION),
        (exchange(1, answer={"error": {"message": "boom"}}), FailureKind.EXCEPTION),
        (exchange(1, error="reset", error_message="Connection reset by peer"), FailureKind.EXCEPTION),
        (exchange(1, error="timeout"), FailureKind.TIMEOUT),
        (exchange(1, status=504), FailureKind.TIMEOUT),
        (exchange(1, answer={"choices": [{"text": "a", "finish_reason": "length"}]}), FailureKind.SILENT_TRUNCATION),
        (exchange(1, status=401, answer={"error": {"message": "who?"}}), None),
        (exchange(1, error_message=GIVEN_UP), None),
        (exchange(1), None),
    ],
)
def test_how_a_recorded_answer_failed(made, kind):
    symptom = program_calls(program(made), None).symptom
    assert (symptom.kind if symptom else None) == kind


def test_an_answer_that_has_its_limit_is_not_cut():
    full = {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 4}}
    limited = exchange(1, body={"model": "m", "max_tokens": 4}, answer=full)
    assert program_calls(program(limited), None).symptom is None
    more = exchange(1, body={"model": "m", "max_tokens": 5}, answer=full)
    assert program_calls(program(more), None).symptom is not None


def test_what_asks_no_model_or_on_another_wire_is_not_sent():
    tool = exchange(1, url="http://tools.test/weather")
    asked = exchange(2, direction="in")
    responses = exchange(3, url="http://model.test/v1/responses")
    broken = exchange(4, request_body=b"{")
    planned = program_calls(program(tool, asked, responses, broken), None)
    assert (planned.calls, planned.other_wire) == ([], 2)


PLAN = Plan(
    source="engine",
    kind=FailureKind.EXCEPTION,
    expected=Signature(Identity(kind="exception"), Location(request_id="r")),
    calls=(Call(at_s=0.5, path="/completions", body={"prompt": [1]}, asked=3, recorded=(Recorded(id="r"),)),),
    head={"dump": {}},
    findings=({"code": "c", "message": "m"},),
)


def test_a_plan_survives_its_way_through_json():
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN
    empty = Plan(source="engine", reason=Reason.NOTHING_RECORDED)
    assert Plan.from_json(json.loads(json.dumps(empty.to_json()))) == empty


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/../../admin"},
        {"path": "http://elsewhere.test/completions"},
        {"body": None},
        {"verbatim": "{}"},
        {"body": [1]},
        {"at_s": -1},
        {"at_s": float("nan")},
        {"n": 0},
        {"n": "1"},
        {"headers": {"Authorization": "x"}},
        {"recorded": [{"id": "r", "url": "x"}]},
    ],
)
def test_a_worker_cannot_have_anything_else_sent(change):
    plan = json.loads(json.dumps(PLAN.to_json()))
    plan["calls"][0].update(change)
    with pytest.raises(BadPlan):
        Plan.from_json(plan)


@given(
    st.dictionaries(
        st.sampled_from(sorted(PLAN.to_json())), st.none() | st.integers() | st.text() | st.lists(st.none())
    )
)
def test_a_damaged_plan_is_refused_or_read_and_never_something_else(damage):
    with contextlib.suppress(BadPlan):
        Plan.from_json({**json.loads(json.dumps(PLAN.to_json())), **damage})

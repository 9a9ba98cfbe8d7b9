"""Each quirk: a server runs into its defect, the dump's replay shows the same failure, and without the quirk it does
not."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dumps.schema.reader import open_dump
from replay.engine.quirks import KINDS
from replay.engine.request import SamplingParams
from replay.errors import UsageError
from replay.signature import compare
from replay.targets.expected import own_signature
from tests.job_replays import replayed
from tests.plays import Play, Visit, play
from tests.reports import findings
from tests.tiny_models import make_model

LETTERS = tuple(map(chr, range(97, 123)))
SMALL = {"block_size": 4, "kv_blocks": 40, "max_num_batched_tokens": 32, "max_num_seqs": 4}


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))


def visit(length: int, seed: int = 0, *, limit: int = 12, temperature: float = 0.0, **times: Any) -> Visit:
    sampling = SamplingParams(temperature=temperature, max_tokens=limit, ignore_eos=True, seed=4)
    return Visit(prompt=prompt(length, seed), sampling=sampling, **times)


# By the quirk as it is written: the load, and the server's options.
SCENES: dict[str, tuple[list[Visit], dict[str, Any]]] = {
    "kv-bit-flip:request=1,layer=1,position=4,after_step=6": ([visit(9), visit(7, 1)], {}),
    "int8-zero-scale:request=1,layer=1,position=4,after_step=6": ([visit(9), visit(7, 1)], {"kv_quant_bits": 8}),
    "prefix-leak": (
        # Somebody's text first, then a long prompt whose client leaves before most of it is computed, and its retry.
        [visit(36, 3, limit=2), visit(40, arrives=6, leaves=7), visit(40, arrives=8), visit(9, 2, arrives=5)],
        {"prefix_cache": True, "checks": True, "max_num_batched_tokens": 17, "kv_blocks": 16},
    ),
    "abort-after-finish": ([visit(5, limit=3, leaves=6), visit(9, 1)], {}),
    "multinomial": ([visit(9, 1, temperature=0.7), visit(7, 2, temperature=1e-4, arrives=4)], {}),
    "free-block-reuse:running=0,block=1,after_step=1": (
        [visit(12, limit=4), visit(20, 1, arrives=1)],
        {"checks": True, "kv_blocks": 8},
    ),
    "prompt-unchecked": ([visit(9), visit(40, 1)], {"kv_blocks": 8}),
    "token-ids-unchecked": (
        [visit(9), Visit(prompt=prompt(7, 1), sampling=SamplingParams(logit_bias=((400, 1.0),)), arrives=2)],
        {},
    ),
    # GPT-2, whose table has 256 positions: the step that dies draws no token
    "positions-unchecked": ([visit(9, limit=2), visit(290, 1)], {"kv_blocks": 80, "max_model_len": 300}),
}
NAMES = [text.partition(":")[0] for text in SCENES]


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory) -> dict[str, Path]:
    """The model of each scene."""
    gpt2 = make_model(tmp_path_factory.mktemp("gpt2"), "gpt2")
    return dict.fromkeys(NAMES, tiny) | {"positions-unchecked": gpt2}


@pytest.fixture(scope="module")
def plays(models, tmp_path_factory) -> dict[str, Play]:
    played = {}
    for text, (people, options) in SCENES.items():
        name, folder = text.partition(":")[0], tmp_path_factory.mktemp("dumps")
        played[name] = play(models[name], folder, people, quirks=(text,), **SMALL | options)
    return played


@pytest.fixture(scope="module")
def dumps(plays) -> dict[str, Path]:
    return {name: played.dumps[0] for name, played in plays.items()}


def test_there_is_a_scene_for_every_quirk():
    assert sorted(NAMES) == sorted(KINDS)


FAILURES: dict[str, tuple[str, str, str]] = {
    "kv-bit-flip": ("non-finite", "finite-logits", "replay.errors.NonFiniteLogits"),
    "int8-zero-scale": ("non-finite", "finite-logits", "replay.errors.NonFiniteLogits"),
    "prefix-leak": ("contamination", "slot-unwritten", ""),
    "abort-after-finish": ("exception", "", "builtins.KeyError"),
    "multinomial": ("exception", "", "builtins.RuntimeError"),
    "free-block-reuse": ("contamination", "slot-foreign", ""),
    "prompt-unchecked": ("stall", "admission-possible", ""),
    "token-ids-unchecked": ("exception", "", "builtins.IndexError"),
    "positions-unchecked": ("exception", "", "replay.errors.PositionOverflow"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_failure_comes_back_at_its_place(dumps, models, name):
    report = replayed(dumps[name], models[name])
    assert report["verdict"] == "reproduced"
    identity, location = report["signature"]["identity"], report["signature"]["location"]
    assert (identity["kind"], identity["invariant"], identity["exception_type"]) == FAILURES[name]
    assert all(report["match"].values())
    assert location == report["expected_signature"]["location"]
    assert None not in (location["request_id"], location["step"])
    assert report["divergence"] is None
    assert report["mode"] == "strict"
    [quirk] = report["quirks"]
    assert (quirk["name"], quirk["in_force"]) == (name, not KINDS[name].damages_data)


@pytest.mark.parametrize("name", ["kv-bit-flip", "int8-zero-scale"])
def test_recorded_damage_also_enters_a_schedule_that_is_derived_again(dumps, tiny, name):
    report = replayed(dumps[name], tiny, schedule="live")
    assert (report["verdict"], report["divergence"]) == ("reproduced", None)


def test_a_block_that_is_freed_twice_by_an_abort_fails_the_step_that_has_it_on_record(tiny, tmp_path):
    """The server dumps it and goes on, as after any exception of a step."""
    quirk = "free-block-reuse:running=0,block=1,after_step=1"
    played = play(tiny, tmp_path, [visit(12, limit=30, leaves=3)], quirks=(quirk,), **SMALL)
    [dump] = played.dumps
    for options in ({}, {"target": "schedule"}, {"schedule": "live"}):
        report = replayed(dump, None if "target" in options else tiny, **options)
        assert report["verdict"] == "reproduced"
        assert report["signature"]["identity"]["exception_type"] == "builtins.ValueError"


# By what happens to the request whose block is freed under it: a load, the steps at which the last dump has its
# failures, the invariant, and who wrote the block last.
DOUBLE_FREES: dict[str, tuple[list[Visit], int, list[tuple[str, int]], str, str]] = {
    "it ends": (
        [visit(12, limit=4), visit(20, 1, arrives=1)],
        8,
        [("contamination", 2), ("exception", 3), ("contamination", 2)],
        "slot-foreign",
        "r1",
    ),
    "its client leaves": (
        [visit(12, limit=30, leaves=3), visit(20, 1, arrives=1)],  # then r1 reads a free block, and ends by its NaN
        8,
        [("contamination", 2), ("exception", 3), ("contamination", 3), ("contamination", 2)],
        "slot-foreign",
        "r1",
    ),
    "it ends in the step that finds it": (
        [visit(12, limit=3)],
        40,
        [("exception", 2), ("contamination", 2)],
        "slot-freed",
        "r0",
    ),
}


@pytest.mark.parametrize("case", DOUBLE_FREES)
def test_with_checks_the_second_release_of_a_block_does_not_hide_its_contamination(tiny, tmp_path, case, caplog):
    people, blocks, failures, invariant, writer = DOUBLE_FREES[case]
    quirk = "free-block-reuse:running=0,block=1,after_step=1"
    options = SMALL | {"kv_blocks": blocks, "checks": True}
    dump = play(tiny, tmp_path, people, quirks=(quirk,), **options).dumps[-1]
    with open_dump(dump) as opened:
        state = opened.state
    assert [(failure.kind, failure.step) for failure in state.failures] == failures
    assert (state.manifest.reason, state.exceptions[-1].type) == ("contamination", "ValueError")
    last = state.failures[-1]
    assert last.HasField("request")
    reader = state.requests[last.request].id
    assert (last.invariant, reader, last.read.block, last.read.writer) == (invariant, "r0", 1, writer)
    told = [r.getMessage() for r in caplog.records if "request r0 reads position 4 in block 1" in r.getMessage()]
    assert len(told) == (1 if len(failures) == 2 else 2)  # when it was found, and behind the exception
    for choice in ({}, {"target": "schedule"}, {"schedule": "live"}):
        model = None if "target" in choice else tiny
        report = replayed(dump, model, **choice)
        assert report["verdict"] == "reproduced"
        assert all(report["match"].values())
        [found] = findings(report, "contamination")
        assert (found["reader"], found["block"], found["last_writer"]) == ("r0", 1, writer)
        without = replayed(dump, model, **choice, set={"quirk.free-block-reuse": "off"})
        assert without["verdict"] == "not-reproduced"


def test_tokens_that_died_with_their_step_are_not_guessed_without_a_model(tiny, tmp_path):
    """The failing step draws a letter that ends r0, and its end frees the block a second time."""
    quirk = "free-block-reuse:running=0,block=1,after_step=1"
    text = SamplingParams(temperature=0.0, max_tokens=20, min_tokens=4, stop=LETTERS, ignore_eos=True)
    [dump] = play(tiny, tmp_path, [Visit(prompt=prompt(12), sampling=text)], quirks=(quirk,), **SMALL).dumps
    assert replayed(dump, tiny)["verdict"] == "reproduced"
    report = replayed(dump, None, target="schedule")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "needs-inference")


def test_an_end_by_numbers_that_are_not_finite_is_no_guess(tiny, tmp_path):
    """What fails after it is known from the record alone."""
    quirk = "kv-bit-flip:request=1,layer=1,position=4,after_step=6"
    people = [visit(9, limit=0), visit(7, 1)]
    broken, cut = play(tiny, tmp_path, people, quirks=(quirk,), max_model_len=30, **SMALL).dumps
    report = replayed(cut, None, target="schedule")
    assert (report["verdict"], report["findings"]) == ("reproduced", [])
    assert replayed(broken, None, target="schedule")["reason_code"] == "needs-inference"


def test_an_abort_after_an_end_by_text_leaves_that_end_known_without_a_model(tiny, tmp_path):
    text = SamplingParams(temperature=0.0, max_tokens=9, stop=LETTERS, ignore_eos=True)
    people = [Visit(prompt=prompt(5), sampling=text, leaves=12), visit(9, 1, limit=20)]
    [dump] = play(tiny, tmp_path, people, quirks=("abort-after-finish",), **SMALL).dumps
    with open_dump(dump) as opened:
        assert [end.cause for step in opened.state.steps for end in step.finished] == ["stop-string"]
        assert opened.state.requests[0].finish_cause == "client-gone"
    for options in ({}, {"target": "schedule"}):
        report = replayed(dump, None if options else tiny, **options)
        assert (report["verdict"], report["divergence"]) == ("reproduced", None)


@pytest.mark.parametrize("name", NAMES)
def test_without_the_quirk_it_does_not(dumps, models, name):
    report = replayed(dumps[name], models[name], set={f"quirk.{name}": "off"})
    assert report["verdict"] == "not-reproduced"
    assert report["signature"] is None
    [quirk] = report["quirks"]
    assert not quirk["in_force"]
    assert findings(report, "contamination") == []
    assert [found["request"] for found in findings(report, "refused-at-the-door")] == ["r1"] * KINDS[name].at_the_door


@pytest.mark.parametrize("name", ["prefix-leak", "abort-after-finish", "free-block-reuse", "prompt-unchecked"])
def test_what_lies_in_scheduler_and_pool_comes_back_without_a_model(dumps, name):
    report = replayed(dumps[name], None, target="schedule")
    assert report["verdict"] == "reproduced"
    assert replayed(dumps[name], None, target="schedule", set={f"quirk.{name}": "off"})["verdict"] == "not-reproduced"


@pytest.mark.parametrize("name", [name for name in NAMES if KINDS[name].needs_model])
def test_what_lies_in_numbers_needs_the_model(dumps, name):
    report = replayed(dumps[name], None, target="schedule")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "needs-inference")
    with pytest.raises(UsageError, match="changes nothing in --target schedule"):
        replayed(dumps[name], None, target="schedule", set={f"quirk.{name}": "off"})


def test_no_two_quirks_leave_the_same_failure(dumps):
    signatures = {}
    for name, dump in dumps.items():
        with open_dump(dump) as opened:
            signatures[name] = own_signature(opened.state)
    for name, one in signatures.items():
        for other, two in signatures.items():
            same_kind_of_damage = {name, other} == {"kv-bit-flip", "int8-zero-scale"}
            if name != other and not same_kind_of_damage:
                assert one is not None
                assert two is not None
                assert not all(compare(one, two, location=False).values()), (name, other)


@pytest.mark.parametrize(("name", "other"), [*pairwise(NAMES[1:]), (NAMES[-1], NAMES[0])])
def test_a_replay_does_not_show_the_failure_of_another_quirk(dumps, models, name, other):
    report = replayed(dumps[name], models[name], signature=str(dumps[other]))
    assert report["verdict"] in ("different-failure", "not-reproduced")


def test_a_leaked_prefix_names_the_block_its_owners_and_reader(dumps, tiny):
    report = replayed(dumps["prefix-leak"], tiny)
    [found] = findings(report, "contamination")
    assert (found["reader"], found["last_writer"]) == ("r2", "r0")  # whose text really lies there
    assert [(one["event"], one["request"]) for one in found["owners"] if one["event"] != "evict"] == [
        *(("allocate", "r0"), ("free", "r0")),
        *(("allocate", "r1"), ("free", "r1")),
        *(("share", "r2"), ("free", "r2")),
    ]
    location = report["signature"]["location"]
    assert (location["block"], location["slot"], location["position"]) == (
        found["block"],
        found["slot"],
        found["position"],
    )


def test_a_reused_block_names_the_request_that_wrote_over_it(dumps, tiny):
    report = replayed(dumps["free-block-reuse"], tiny)
    [found] = findings(report, "contamination")
    assert (found["reader"], found["position"], found["block"], found["slot"]) == ("r0", 4, 1, 0)
    assert (found["last_writer"], found["last_writer_position"], found["written_by_step"]) == ("r1", 16, 2)
    assert [(owner["step"], owner["event"], owner["request"]) for owner in found["owners"]][:3] == [
        (0, "allocate", "r0"),
        (1, "free", None),
        (2, "allocate", "r1"),
    ]


def test_a_damaged_slot_names_the_owners_of_its_block(dumps, tiny):
    report = replayed(dumps["kv-bit-flip"], tiny)
    [found] = findings(report, "block-owners")
    place = report["failure"]["non_finite"]
    assert (found["block"], found["reader"], found["last_writer"]) == (place["block"], "r1", "r1")
    assert found["owners"][0] == {"step": 0, "event": "allocate", "request": "r1"}


def test_answers_before_the_window_are_drawn_again_with_the_defect(dumps, tiny):
    # r0 ended, or was at work, before the one step of this window: its tokens are drawn in a cache of their own.
    report = replayed(dumps["multinomial"], tiny, window=1)
    assert (report["verdict"], report["divergence"]) == ("reproduced", None)
    assert report["compared"]["tokens"] >= 4


def test_the_stage_of_the_sampler_that_overflowed_is_named(dumps, tiny):
    report = replayed(dumps["multinomial"], tiny)
    assert report["failure"]["non_finite"]["where"] == "temperature"
    assert (report["failure"]["request_id"], report["failure"]["position"]) == ("r1", 7)


def test_a_server_with_checks_records_the_owners_of_blocks(dumps):
    with open_dump(dumps["free-block-reuse"]) as dump:
        state = dump.state
    assert state.engine.checks
    ids = [request.id for request in state.requests]
    events = [
        (e.step, e.event, ids[e.request] if e.HasField("request") else None)
        for e in state.kv.block_history
        if e.block == 1
    ]
    assert events[:3] == [(0, "allocate", "r0"), (1, "free", None), (2, "allocate", "r1")]
    read = state.failures[-1].read
    assert (read.block, read.slot, read.writer, read.writer_position) == (1, 0, "r1", 16)


def test_without_checks_a_failure_that_only_they_see_is_not_looked_for(dumps, tiny):
    report = replayed(dumps["prefix-leak"], tiny, checks="off")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "needs-checks")
    assert findings(report, "contamination") == []


def test_contamination_shows_in_a_dump_whose_server_did_not_check(tiny, tmp_path):
    people, options = SCENES["prefix-leak"]
    played = play(tiny, tmp_path, people, quirks=("prefix-leak",), **SMALL | options | {"checks": False})
    assert played.dumps == []
    report = replayed(played.demand, tiny, window=1)
    assert report["divergence"] is None  # nor did filling freed blocks change what was read
    assert report["signature"]["identity"]["invariant"] == "slot-unwritten"
    assert len(findings(report, "contamination")) == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("quirk.prefix-leek", "quirk.prefix-leak"),
        ("quirk.kv-bit-flip", "prefix-leak"),
    ],
)
def test_a_quirk_that_the_dump_does_not_have_cannot_be_turned_off(dumps, tiny, key, message):
    with pytest.raises(UsageError) as caught:
        replayed(dumps["prefix-leak"], tiny, set={key: "off"})
    assert message in f"{caught.value.remedy}"


def test_damage_cannot_be_left_out_and_restored_at_once(dumps, tiny):
    with pytest.raises(UsageError, match="kv: restore"):
        replayed(dumps["kv-bit-flip"], tiny, kv="restore", set={"quirk.kv-bit-flip": "off"})


def test_an_abort_after_its_request_has_ended_is_told_in_its_order(dumps):
    report = replayed(dumps["abort-after-finish"], None, target="schedule")
    [found] = findings(report, "abort-after-finish")
    assert found["request"] == report["failure"]["request_id"] == "r0"
    finish, abort = found["events"]
    assert (finish["event"], finish["cause"], abort["event"], abort["cause"]) == (
        *("finish", "max-tokens"),
        *("abort", "client-gone"),
    )
    assert finish["step"] < abort["step"] == report["failure"]["step"]


def test_an_id_beyond_the_vocabulary_is_named_before_anything_runs(dumps):
    report = replayed(dumps["token-ids-unchecked"], None, target="schedule")
    [found] = findings(report, "invalid-state")
    assert found["rule"] == "requests.unchecked-id"
    assert "requests[1].sampling.logit_bias[0].token_id: token id 400 is outside 0 to 319" in found["message"]


def test_a_rotary_model_beyond_its_positions_goes_on_and_the_report_says_that_it_does(tiny, tmp_path):
    """Served with room for one token more than the model's 256 positions, and cut there."""
    people = [visit(250, limit=0)]
    options = SMALL | {"kv_blocks": 80, "max_model_len": 260}
    [dump] = play(tiny, tmp_path, people, quirks=("positions-unchecked",), **options).dumps
    report = replayed(dump, tiny)
    assert report["verdict"] == "reproduced"
    assert report["signature"]["identity"]["invariant"] == "max-model-len"
    assert report["requests"][0]["output_len"] == 10
    [found] = findings(report, "position-overflow")
    assert (found["max_model_len"], found["limit"]) == (260, 256)
    assert "finite and not what it was trained for" in found["message"]
    off = replayed(dump, tiny, set={"quirk.positions-unchecked": "off"})
    assert (off["verdict"], off["reason_code"]) == ("reproduced", "")  # now it is cut by the model's own limit
    assert off["requests"][0]["output_len"] == 6

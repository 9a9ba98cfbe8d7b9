"""How a change is written, and what it makes of a job."""

from __future__ import annotations

from replay.why.change import INCLUDED, KV, SCHEDULE, Change, model_key

FLOAT32 = Change(settings={"model.dtype": "float32"}, subject="model.dtype", needs="bfloat16", includes=frozenset({KV}))
STOCK = Change(options={"kernels": "stock"}, subject="kernels", needs="the exact kernels")


def test_it_is_named_without_what_it_includes_and_run_with_it():
    assert FLOAT32.name == "model.dtype=float32"
    assert FLOAT32.arguments == "--set model.dtype=float32 --kv recompute"


def test_a_value_is_quoted_for_a_shell():
    answered = Change(settings={"tool.a.result": '{"celsius": 21}'}, subject="tool.a", needs="")
    assert answered.arguments == """--set 'tool.a.result={"celsius": 21}'"""


def test_two_changes_make_one_job():
    job = STOCK.applied(FLOAT32.applied({"dump": "a.pplx", "set": {"kv.num_blocks": "9"}}))
    assert job == {
        "dump": "a.pplx",
        "kv": "recompute",
        "kernels": "stock",
        "set": {"kv.num_blocks": "9", "model.dtype": "float32"},
    }


def test_what_it_includes_can_be_asked_of_a_replay():
    assert set(INCLUDED) == {KV, SCHEDULE}
    assert Change(subject="x", needs="", includes=frozenset(INCLUDED)).all_options == {
        "kv": "recompute",
        "schedule": "live",
    }


def test_changes_with_one_model_have_one_key():
    assert model_key((FLOAT32, STOCK)) == ("float32", "stock")
    assert model_key((Change(subject="x", needs=""),)) == ("", "")

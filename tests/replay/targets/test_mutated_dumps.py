"""Copies of the two real incidents with random fields changed: a report, or an error with a name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from replay.errors import BudgetSpent, UsageError
from replay.targets.settings import SETTINGS
from tests.incidents import incident, replayed


def mutate(message: Any, choice: Any) -> None:
    """Change one field, chosen at random down the tree, to a random value of its type."""
    fields = [f for f, _ in message.ListFields() if f.number < 100] or list(message.DESCRIPTOR.fields)
    field = choice(st.sampled_from(fields))
    value = getattr(message, field.name)
    nested = field.type == field.TYPE_MESSAGE
    if field.is_repeated and nested and len(value):
        place = choice(st.integers(0, len(value) - 1))
        what = choice(st.sampled_from(("within", "within", "within", "drop", "twice")))
        if what == "within":
            mutate(value[place], choice)
        elif what == "drop":
            del value[place]
        else:
            value.add().CopyFrom(value[place])
    elif nested and not field.is_repeated:
        mutate(value, choice)
    elif not nested and not field.is_repeated:
        setattr(message, field.name, choice(VALUES.get(field.cpp_type, COUNTS)))
    else:
        message.ClearField(field.name)


COUNTS = st.sampled_from([0, 1, 2, 3, 5, 16, 54, 97, 1000, (1 << 31) - 1])
VALUES = {
    pb.SamplingParams.DESCRIPTOR.fields_by_name["top_p"].cpp_type: st.floats(allow_nan=True),
    pb.LogitBias.DESCRIPTOR.fields_by_name["bias"].cpp_type: st.floats(width=32),
    pb.EngineConfig.DESCRIPTOR.fields_by_name["num_blocks"].cpp_type: COUNTS,
    pb.Step.DESCRIPTOR.fields_by_name["index"].cpp_type: COUNTS,
    pb.Step.DESCRIPTOR.fields_by_name["completed"].cpp_type: st.booleans(),
    pb.LedgerEntry.DESCRIPTOR.fields_by_name["grade"].cpp_type: st.sampled_from([0, 1, 2]),
    pb.Request.DESCRIPTOR.fields_by_name["id"].cpp_type: st.one_of(
        st.sampled_from(["", "stop", "length", "eos", "truncate", "preempt", "raise", "\x1b[31m"]),
        st.binary(max_size=12),
    ),
}
SETTING = st.sampled_from(sorted(SETTINGS))
RAW = st.one_of(st.integers(-3, 200), st.floats(), st.sampled_from(["", "x", "raise", "preempt", "1e9", "\x00"]))


@pytest.mark.parametrize("name", ["kv-overflow", "nan-block"])
@given(data=st.data())
def test_whatever_is_altered_gives_a_report_or_a_named_error(tmp_path_factory, name, data):
    def choice(strategy: Any) -> Any:
        return data.draw(strategy)

    state, sections = incident(name)
    for _ in range(choice(st.integers(1, 3))):
        try:
            mutate(state, choice)
        except (ValueError, TypeError):  # bytes that are not text: the writer would not make such a file
            continue
    options = {
        "target": "schedule",
        "timeout_s": 20.0,
        "schedule": choice(st.sampled_from(["recorded", "live"])),
        "scope": choice(st.sampled_from(["engine", "engine", "request"])),
        "set": choice(st.dictionaries(SETTING, RAW, max_size=2)),
    }
    try:
        report = replayed(tmp_path_factory.mktemp("mutant"), state, sections, **options)
    except (DumpError, UsageError, BudgetSpent):
        return
    if report["verdict"] == "reproduced":
        assert report["match"]
        assert all(report["match"].values())
        # Without a model no number can be seen to be non-finite: whatever the file says.
        assert report["signature"]["identity"]["kind"] != "non-finite"

"""What is taken out of a dump without another run, and what its ledger says then."""

from __future__ import annotations

from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.validate import validate
from replay.minimise.pieces import Content, Stripping
from tests.incidents import incident

NAN = "nan-block"


def with_logs(count: int = 5) -> Content:
    state, sections = incident(NAN)
    for number in range(count):
        state.logs.add(message=f"line {number}", level="INFO")
    for depth in (1, 2, 3):
        state.context_stack.add(stack_depth=depth, last_message_id=f"m{depth}")
    return Content(state, tuple(sections))


def stripped(content: Content, needs, *, elements: bool = True) -> Stripping:
    made = Stripping(content, needs, elements=elements)
    made.run()
    return made


def test_what_no_replay_needs_goes_and_the_dump_says_so():
    content = with_logs()
    made = stripped(content, lambda candidate: True)
    result = made.result
    assert made.removed == {
        "stacks": len(content.state.threads),
        "log records": 5,
        "context messages": 3,
        "section kv-contents": 1,
    } | {name: made.removed[name] for name in ("exceptions",) if name in made.removed}
    assert (len(result.state.logs), len(result.state.threads), result.sections) == (0, 0, ())
    assert not result.state.kv.contents_blocks
    assert weakest(result.state, "logs").grade == pb.ABSENT
    assert validate(result.state) == validate(content.state)
    assert result.state.manifest.id != content.state.manifest.id


def test_single_entries_stay_where_they_are_needed_and_stacks_are_counted_anew():
    def needs(candidate: Content) -> bool:
        lines = [one.message for one in candidate.state.logs]
        return (
            "line 1" in lines
            and "line 4" in lines
            and any(one.last_message_id == "m3" for one in candidate.state.context_stack)
        )

    result = stripped(with_logs(), needs).result
    assert [one.message for one in result.state.logs] == ["line 1", "line 4"]
    assert [(one.stack_depth, one.last_message_id) for one in result.state.context_stack] == [(1, "m3")]


def test_single_entries_are_left_alone_where_nobody_asked_for_them():
    result = stripped(with_logs(), lambda candidate: len(candidate.state.logs) > 0, elements=False).result
    assert len(result.state.logs) == 5


def test_where_all_is_needed_nothing_changes():
    content = with_logs()
    assert stripped(content, lambda candidate: False).result is content


def test_doing_it_again_changes_nothing():
    once = stripped(with_logs(), lambda candidate: True).result
    again = stripped(once, lambda candidate: True)
    assert again.removed == {}
    assert again.result.digest == once.digest


def test_what_would_contradict_the_rest_is_not_even_tried():
    state, sections = incident(NAN)
    for name in ("in-1", "in-2"):
        state.exchanges.add(id=name, direction="in", framing="body", method="GET", url="http://a/", status=200)
    state.failures[-1].exchange = "in-2"
    content, tried = Content(state, tuple(sections)), []
    assert validate(state) == []

    def needs(candidate: Content) -> bool:
        tried.append([one.id for one in candidate.state.exchanges])
        return True

    result = stripped(content, needs).result
    assert [one.id for one in result.state.exchanges] == ["in-2"]
    assert all("in-2" in names for names in tried)


def test_a_request_that_came_in_goes_with_all_that_was_asked_for_it():
    state, sections = incident(NAN)
    for name in ("in-1", "in-2"):
        state.exchanges.add(id=name, direction="in")
        state.exchanges.add(id=f"out-of-{name}", direction="out", within=name)
        state.tool_calls.add(id=f"tool-of-{name}", within=name)

    def needs(candidate: Content) -> bool:
        ids = [one.id for one in candidate.state.exchanges] + [one.id for one in candidate.state.tool_calls]
        pairs = all(
            (f"out-of-{name}" in ids) == (f"tool-of-{name}" in ids) == (name in ids) for name in ("in-1", "in-2")
        )
        return pairs and "in-2" in ids

    result = stripped(Content(state, tuple(sections)), needs).result
    assert [one.id for one in result.state.exchanges] == ["in-2", "out-of-in-2"]
    assert [one.id for one in result.state.tool_calls] == ["tool-of-in-2"]


def test_a_dump_is_read_and_written_whole(tmp_path):
    content = with_logs()
    content.write(tmp_path / "a.pplx")
    assert Content.read(tmp_path / "a.pplx").digest == content.digest
    content.write(tmp_path / "a.pplx")  # it replaces its own

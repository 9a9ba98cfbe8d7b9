"""What a replay of a program is asked for, checked before anything runs."""

from __future__ import annotations

import pytest

from dumps.schema import state_pb2 as pb
from replay.errors import UsageError
from replay.targets.app.options import app_options, check_tools, is_app


def options(**job):
    return app_options({"target": "app=agent:main", **job})


def test_the_least_and_the_most():
    assert options().entry == "agent:main"
    assert options().answers == "replayed"
    assert options().tool_results == {}
    assert options().handlers == ""
    full = options(
        app_path=["/a", "/b"],
        answers="recorded",
        set={"tool.tool-1.result": '{"a": 1}', "tool.call.result.result": [1, "x"]},
        fork=True,
        handlers="mine:handle",
        signature="other.pplx",
        salvage=True,
    )
    assert full.app_path == ("/a", "/b")
    assert full.tool_results == {"tool-1": '{"a": 1}', "call.result": '[1,"x"]'}
    assert (full.handlers, full.signature, full.salvage) == ("mine:handle", "other.pplx", True)


@pytest.mark.parametrize("target", ["app=", "app=agent", "app=agent:", "app=:main"])
def test_a_target_that_names_no_callable(target):
    assert is_app(target)
    with pytest.raises(UsageError, match="names no callable") as caught:
        app_options({"target": target})
    assert "MODULE:CALLABLE" in caught.value.remedy


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"mode": "forced"}, "--mode changes nothing"),
        ({"scope": "request"}, "--scope changes nothing"),
        ({"kernels": "stock"}, "--kernels changes nothing"),
        ({"schedule": "live"}, "--schedule changes nothing"),
        ({"kv": "restore"}, "--kv changes nothing"),
        ({"checks": "off"}, "--checks changes nothing"),
        ({"window": 8}, "--window changes nothing"),
        ({"answers": "made-up"}, "replayed or recorded"),
        ({"answers": "recorded", "model": "/m"}, "--model changes nothing"),
        ({"answers": "recorded", "device": "cpu"}, "--device changes nothing"),
        ({"app_path": "folder"}, "app-path: wants folders"),
        ({"app_path": [1]}, "app-path: wants folders"),
        ({"set": ["tool.a.result=1"]}, "set: wants an object"),
        ({"set": {"tool.a.result": "{city: 1}"}}, "wants JSON"),
        ({"set": {"tool.a.result": "NaN"}}, "wants JSON"),
        ({"set": {"tool.a.result": ""}}, "wants JSON"),
        ({"set": {"tool.a.reslut": "1"}}, "only tool.ID.result"),
        ({"set": {"tool..result": "1"}}, "only tool.ID.result"),
        ({"set": {"tool.result": "1"}}, "only tool.ID.result"),
        ({"set": {"kv.num_blocks": "96"}}, "only tool.ID.result"),
        ({"fork": True}, "nothing answers it there"),
        ({"handlers": "mine:handle"}, "takes --fork"),
        ({"fork": True, "handlers": "mine"}, "names no function"),
    ],
)
def test_what_is_refused_and_how(job, says):
    with pytest.raises(UsageError, match=says) as caught:
        options(**job)
    assert caught.value.exit_code == 2


def test_a_tool_call_that_is_not_there_is_answered_with_those_that_are():
    state = pb.RuntimeState()
    for call_id, name in (("tool-1", "weather"), ("tool-2", "rates"), ("call_weather", "weather")):
        state.tool_calls.add(id=call_id, name=name)
    check_tools(options(set={"tool.tool-2.result": "1"}), state)
    with pytest.raises(UsageError, match=r"tool\.tool-9\.result: the dump has no such") as caught:
        check_tools(options(set={"tool.tool-9.result": "1"}), state)
    assert caught.value.remedy == "it has tool-1 (weather), tool-2 (rates), call_weather (weather)"
    with pytest.raises(UsageError) as caught:
        check_tools(options(set={"tool.a.result": "1"}), pb.RuntimeState())
    assert caught.value.remedy == "it records no tool call"

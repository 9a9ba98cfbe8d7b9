from __future__ import annotations

import json
import sys
import types

from dumps.record.message_text import error_text, type_name, utf8
from dumps.schema import state_pb2 as pb


class Nested:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError("no")


def test_any_text_fits_a_message():
    assert pb.Frame(function=utf8("a\ud800b")).function == "a\\ud800b"
    assert utf8("żó") == "żó"
    assert utf8(7) == "7"


def test_types_go_by_their_qualified_names_and_those_of_python_without_a_module():
    assert type_name(KeyError()) == "KeyError"
    assert type_name(json.JSONDecodeError("m", "d", 0)) == "json.decoder.JSONDecodeError"
    assert type_name(Nested.BrokenError()) == f"{__name__}.Nested.BrokenError"


def test_a_type_of_the_script_that_runs_goes_by_the_name_a_replay_imports_it_under(monkeypatch):
    script = types.ModuleType("__main__")
    script.__file__, script.__spec__ = "/somewhere/triage.py", None
    monkeypatch.setitem(sys.modules, "__main__", script)
    kind = type("TokenExpired", (Exception,), {"__module__": "__main__"})
    assert type_name(kind()) == "triage.TokenExpired"


def test_the_text_of_an_error_is_cut_and_always_there():
    assert error_text(ValueError("12345"), 3) == "123"
    assert error_text(ValueError("\ud800"), 3) == "\\ud800"
    assert error_text(Nested.BrokenError(), 100) == "<its message could not be made>"

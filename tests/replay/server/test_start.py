"""How the server starts, and when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from replay.cli.serve import serve as command
from replay.errors import UsageError
from tests.replay.server.server_process import ROOT, started


def start(dumps: Path) -> list[str]:
    return ["-m", "replay.cli", "replay", "serve", "--port", "0", "--dumps", str(dumps), "--json"]


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which is expected to refuse."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "replay.cli", "replay", "serve", "--port", "0", *arguments]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_an_address_others_can_reach_needs_a_flag(tmp_path: Path) -> None:
    done = serve("--dumps", str(tmp_path), "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr
    for host in ("::", "192.0.2.1", "example.com", "::ffff:192.0.2.1"):
        with pytest.raises(UsageError, match="other machines"):
            command.main(["--host", host], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--timeout", "soon"], "--timeout"),
        (["--timeout", "0"], "--timeout"),
        (["--max-upload", "-1"], "--max-upload"),
        (["--max-upload", "much"], "--max-upload"),
        (["--dumps", "/no/such/folder"], "--dumps"),
        (["--token", "short"], "16 printable"),
        (["--token", "with space in it 0123"], "no space"),
        (["--token", "0123456789abcdef", "--token-file", "x"], "exclude"),
        (["--token-file", "/no/such/file"], "--token-file"),
    ],
)
def test_options_that_cannot_be_used(arguments: list[str], says: str) -> None:
    # The host is refused in the end, so that a missing check is another message and not a server that waits.
    with pytest.raises((click.UsageError, UsageError)) as caught:
        command.main(["--host", "192.0.2.1", *arguments], standalone_mode=False)
    error = caught.value
    assert says in (error.format_message() if isinstance(error, click.UsageError) else str(error))


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123")
    file.chmod(0o644)
    with pytest.raises(UsageError) as caught:
        command.main(["--host", "192.0.2.1", "--token-file", str(file)], standalone_mode=False)
    assert "chmod 600" in caught.value.remedy


def test_a_token_file_gives_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123\n")
    file.chmod(0o600)
    with started([*start(tmp_path), "--token-file", str(file)], tmp_path) as server:
        assert server.token == "0123456789abcdef0123"


def test_tokens_differ_between_starts_and_are_long(tmp_path: Path) -> None:
    with started(start(tmp_path), tmp_path) as one, started(start(tmp_path), tmp_path) as two:
        assert one.token != two.token
        assert len(one.token) >= 40


def test_a_port_that_is_taken_is_a_usage_error(tmp_path: Path) -> None:
    with started(start(tmp_path), tmp_path) as server:
        done = serve("--dumps", str(tmp_path), "--port", str(server.port))
    assert done.returncode == 2
    assert "cannot listen" in done.stderr

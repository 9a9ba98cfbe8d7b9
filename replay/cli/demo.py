"""``pplx-replay demo``: the whole loop once, with real processes and nothing prepared.

A server runs out of KV blocks and cuts an answer without a word; it is killed; a dump is recovered from what it left; a
new process replays that dump, once as it was and once with more blocks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.text import Text

from dumps.text import printable
from replay.cli.console import command, json_option, print_json, stderr, stdout
from replay.cli.progress import progress
from replay.cli.report_view import show
from replay.errors import ModelUnavailable, ReplayError

MODEL = "smollm2-135m"
KV_BLOCKS = 36
MORE_BLOCKS = 160
MAX_TOKENS = 120
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0

QUESTIONS = (
    "Write a short story about a lighthouse keeper and a storm.",
    "Explain how a bicycle stays upright, for a curious child.",
    "Describe the process of baking bread, step by step.",
    "What should I pack for a week of hiking in the mountains?",
    "Give me an overview of how vaccines work in the body.",
    "Tell me about the history of the printing press.",
)


class DemoFailed(ReplayError):
    """A step of the demo did not show what it must. The message says which, and the files are kept."""


@dataclass(slots=True)
class Answer:
    """What one client has received so far."""

    question: str
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    status: int = 0
    ended: bool = False

    @property
    def cut(self) -> bool:
        """Whether it ended for length although more tokens were allowed."""
        return self.ended and self.finish_reason == "length" and self.tokens < MAX_TOKENS


@dataclass(slots=True)
class Serving:
    """The server's process and what it said of itself."""

    process: subprocess.Popen[str]
    url: str = ""
    ring: Path = field(default_factory=Path)


@command()
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("pplx-demo"),
    show_default=True,
    help="Where the dump, the ring and the server's log are left.",
)
@json_option
def demo(keep: Path, as_json: bool) -> int:
    """Show the whole loop: a server fails, is killed, and its failure is replayed.

    Fetches the model (94 MB) if it is not here. Takes about a minute on two cores.

    \b
    Examples:
      pplx-replay demo
      pplx-replay demo --keep demo-files --json
    """
    say = _Narrator(quiet=as_json)
    keep.mkdir(parents=True, exist_ok=True)
    folder = keep / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(mode=0o700)
    say.step(f"The model: {MODEL}")
    say.line(f"in {_from_home(_ensure_model())}")

    say.step(f"A server with a small KV pool, in its own process ({KV_BLOCKS} blocks of 16 tokens)")
    with _server(folder) as serving:
        say.line(f"serving at {serving.url}, pid {serving.process.pid}")
        say.step(f"{len(QUESTIONS)} chat requests at once, up to {MAX_TOKENS} tokens each")
        answers = asyncio.run(_ask_until_cut(serving.url))
        cut = next((answer for answer in answers if answer.cut), None)
        if cut is None:
            raise DemoFailed("no answer was cut: every request found the blocks it needed", remedy=f"see {folder}")
        say.line(f"Q: {cut.question}")
        say.line(f"A: {_tail(cut.text)}")
        say.line(
            f"HTTP {cut.status}, finish_reason {cut.finish_reason!r} after {cut.tokens} of {MAX_TOKENS} tokens. "
            "The client was told nothing else."
        )
        running = sum(not answer.ended for answer in answers)
        say.step(f"kill -9 {serving.process.pid}, with {running} answers still in flight")
        serving.process.send_signal(signal.SIGKILL)
        serving.process.wait()

    say.step("Recover a dump from the flight recorder's file that the dead process left")
    for own in folder.glob("*.pplx"):
        say.line(f"(the server had written {own.name} when it cut the answer; what follows does without it)")
    dump = _recover(serving.ring, folder)
    serving.ring.unlink()  # tens of megabytes, and all that is worth keeping of it is in the dump
    say.line(f"{dump} ({dump.stat().st_size:,} bytes)")

    say.step("Replay it in a new process")
    as_recorded = _replay(dump)
    say.report(as_recorded)
    say.step(f"The same with {MORE_BLOCKS} blocks: this must not fail")
    with_more = _replay(dump, "--set", f"kv.num_blocks={MORE_BLOCKS}")
    say.report(with_more)

    verdicts = as_recorded["verdict"], with_more["verdict"]
    if verdicts != ("reproduced", "not-reproduced"):
        raise DemoFailed(f"the two replays gave {' and '.join(verdicts)}", remedy=f"the dump is {dump}")
    if as_json:
        print_json({"dump": str(dump), "cut_answer": cut.text, "reports": [as_recorded, with_more]})
    say.step("Yours to try")
    for line in (f"pplx-state dump {dump}", f"pplx-replay run {dump} --target schedule", f"pplx-state verify {dump}"):
        say.line(line)
    return 0


class _Narrator:
    """Numbers the steps of the demo. Quiet when stdout is for one JSON document."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = stderr() if quiet else stdout()
        self._quiet = quiet
        self._count = 0

    def step(self, text: str) -> None:
        self._count += 1
        self._console.print(Text(f"\n{self._count}. {text}", style="bold"))

    def line(self, text: str) -> None:
        self._console.print(Text("   " + printable(text, 1000)))

    def report(self, report: dict[str, Any]) -> None:
        if not self._quiet:
            show(self._console, report)


def _ensure_model() -> Path:
    from replay.models.locate import locate
    from replay.models.pull import pull

    try:
        return locate(name=MODEL)
    except ModelUnavailable:
        with progress(in_bytes=True) as update:
            return pull(MODEL, on_progress=update)


@contextmanager
def _server(folder: Path) -> Iterator[Serving]:
    """The reference server as its own process, gone when the block ends. Its log is in the folder."""
    arguments = ["server", "--model", MODEL, "--port", "0", "--kv-blocks", str(KV_BLOCKS)]
    arguments += ["--on-kv-exhausted", "truncate", "--record", "tokens", "--dump-dir", str(folder)]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "replay.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
        )
        serving = Serving(process)
        try:
            _await_ready(serving, folder)
            yield serving
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _await_ready(serving: Serving, folder: Path) -> None:
    assert serving.process.stdout is not None
    with progress() as update:
        update("loading the model into the server")
        # Its own exit, a closed pipe, or the ready line ends this loop; the alarm of a hang is the user's Ctrl-C.
        for line in serving.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ring":
                serving.ring = Path(rest)
            if word == "ready":
                serving.url = rest
                return
    raise DemoFailed("the server did not start", remedy=f"its log is {folder / 'server.log'}")


async def _ask_until_cut(url: str) -> list[Answer]:
    """Stream all questions at once until the first answer is cut, or all have ended."""
    answers = [Answer(question) for question in QUESTIONS]
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        streams = [asyncio.create_task(_stream(session, url, answer)) for answer in answers]
        with progress() as update:
            pending = set(streams)
            while pending and not any(answer.cut for answer in answers):
                _, pending = await asyncio.wait(pending, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                update("tokens received", sum(answer.tokens for answer in answers), len(answers) * MAX_TOKENS)
        for stream in streams:
            stream.cancel()
        results = await asyncio.gather(*streams, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise DemoFailed(f"a chat request failed: {result}") from result
    return answers


async def _stream(session: aiohttp.ClientSession, url: str, answer: Answer) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": answer.question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        answer.status = response.status
        response.raise_for_status()
        async for line in response.content:
            name, _, data = line.decode().strip().partition(": ")
            if name != "data" or data == "[DONE]":
                continue
            event = json.loads(data)
            for choice in event["choices"]:
                answer.text += choice["delta"].get("content") or ""
                answer.tokens += 1
                answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
    answer.ended = True


def _recover(ring: Path, folder: Path) -> Path:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "replay.cli",
            "state",
            "recover",
            str(ring),
            "-o",
            str(folder / "recovered.pplx"),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoFailed(f"recovering {ring} failed: {done.stdout or done.stderr}")
    return folder / "recovered.pplx"


def _replay(dump: Path, *options: str) -> dict[str, Any]:
    """The JSON report of ``pplx-replay run``. Its progress goes to our stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "replay.cli", "replay", "run", str(dump), "--json", *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    if "error" in report:
        raise DemoFailed(f"the replay ended with an error: {report['error']['message']}", remedy=f"the dump is {dump}")
    return report


def _from_home(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _tail(text: str, length: int = 160) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= length else "..." + joined[-length:]

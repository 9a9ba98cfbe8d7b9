"""Records the agent failing in its four ways, each against real services on loopback that are gone afterwards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tests.agent.services import Tools
from tests.servers import running_server

HERE = Path(__file__).parent
FAILURES = ("hang", "malformed", "reset", "clock-jump")
LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Recorded:
    """``dump`` is what the failing agent left, ``asked`` how often each service was asked, ``stderr`` what it said."""

    failure: str
    dump: Path
    snapshot: Path
    asked: dict[str, int]
    stderr: str


def record_all(model: Path, folder: Path, failures: tuple[str, ...] = FAILURES) -> dict[str, Recorded]:
    """One recording for each failure, at the same time: one of them takes half a minute of waiting."""
    with running_server(model, folder / "server", "--kv-blocks", "300") as server, ThreadPoolExecutor() as pool:
        found = pool.map(lambda failure: record_one(server.url, model.name, folder, failure), failures)
        return {recorded.failure: recorded for recorded in found}


def record_one(model_url: str, model_name: str, folder: Path, failure: str) -> Recorded:
    return asyncio.run(_record(model_url, model_name, folder / failure, failure))


async def _record(model_url: str, model_name: str, folder: Path, failure: str) -> Recorded:
    folder.mkdir(parents=True)
    jumped = folder / "jumped"
    tools = Tools(failure, jumped)
    runner = web.AppRunner(tools.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    dumps = folder / "dumps"
    command = [sys.executable, str(HERE / "record.py"), str(dumps), *([str(jumped)] if failure == "clock-jump" else [])]
    environment = os.environ | {
        "TOOLS_URL": f"http://{host}:{port}",
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "OPENAI_API_KEY": "sk-not-a-key-but-looks-like-one",
        "MODEL_NAME": model_name,
        "AGENT_CACHE": "cache",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        _, stderr = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
        await runner.cleanup()
    found = sorted(dumps.glob("*.pplx"))
    assert len(found) == 1, stderr.decode()
    (snapshot,) = dumps.glob("context-snapshot-*.json")
    return Recorded(failure, found[0], snapshot, dict(tools.asked), stderr.decode())


def main() -> None:
    """python -m tests.agent.recording_session MODEL FOLDER: record the agent and say where its dumps are."""
    model, folder = (Path(argument).absolute() for argument in sys.argv[1:3])  # the agent stands in a folder of its own
    for recorded in record_all(model, folder).values():
        last = recorded.stderr.strip().splitlines()[-1]
        sys.stdout.write(f"{recorded.failure:<11} {recorded.dump}\n            {last[:100]}\n")


if __name__ == "__main__":
    main()

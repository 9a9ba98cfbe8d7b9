"""A worker as its supervisor has it: started, watched, asked where it stands, ended. What it says is read elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import IO

from replay.isolate import folders, limits
from replay.isolate.environment import added, child_environment
from replay.isolate.result import printable_lines
from replay.isolate.stacks import STACK_SIGNAL, shortened

READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 14
DRAIN_S = 1.0  # for the rest of stderr once the process is dead
STACK_S = 0.5  # for a process that is told to say where it stands
STACK_OF_A_HOG_S = 0.02  # while it goes on taking memory
STACK_BYTES = 1 << 16


_swept = False


async def _sweep_once() -> None:
    """What supervisors left that were killed. Once in a process, before its first worker."""
    global _swept
    if not _swept:
        _swept = True
        await asyncio.to_thread(folders.sweep)


class WorkerProcess:
    """One child process with a temporary folder of its own. Belongs to one event loop."""

    def __init__(self, process: Process, stacks: IO[bytes], folder: folders.OwnFolder, memory_limit: int) -> None:
        self._process = process
        self._stacks = stacks
        self._folder = folder
        self.memory_limit = memory_limit
        self.memory_seen: int | None = None  # set when it was above the limit
        self._stack = ""
        self._tail = bytearray()
        self._drain = asyncio.create_task(self._keep_tail())
        self._watch = asyncio.create_task(self._watch_memory())

    @classmethod
    async def start(
        cls,
        job_function: str,
        *,
        memory_limit: int | None,
        gpu: bool = False,
        environment: Mapping[str, str] | None = None,
        jobs: int = 1,
        readable: Sequence[str] = (),
    ) -> WorkerProcess:
        """Start one that runs ``jobs`` jobs one after the other, see `replay.isolate.worker`.

        ``memory_limit`` in bytes, None takes a share of the machine; ``environment`` is added to its variables as far
        as `replay.isolate.environment.added` lets it, ``readable`` are folders that it may read beside what its first
        job names.
        """
        await _sweep_once()
        folder = folders.OwnFolder()
        # Unnamed and opened here: whatever the worker does to files, this is the one that is read.
        stacks = tempfile.TemporaryFile()  # noqa: SIM115
        words = ["--job", job_function, "--parent", str(os.getpid()), "--folder", folder.path, "--jobs", str(jobs)]
        words += ["--stacks", str(stacks.fileno()), *(["--gpu"] if gpu else [])]
        words += [word for path in readable for word in ("--readable", path)]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder the user happens to stand in must not provide modules
                "-X",
                "faulthandler",  # a segmentation fault leaves its stack in the evidence
                "-m",
                "replay.isolate.worker",
                *words,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=child_environment(os.environ) | added(environment or {}) | {"TMPDIR": folder.path},
                pass_fds=(stacks.fileno(),),
                # A group of its own: Ctrl-C in the terminal reaches us only, and one kill reaches all of it.
                start_new_session=True,
            )
        except BaseException:
            stacks.close()
            folder.remove()
            raise
        return cls(process, stacks, folder, limits.default_memory_limit() if memory_limit is None else memory_limit)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def evidence(self) -> str:
        """The end of its stderr and, where it was asked, where it stood. Safe to print."""
        tail = self._tail.decode("utf-8", errors="replace")
        return printable_lines(f"{tail}\nwhere it stood:\n{self._stack}" if self._stack else tail)

    async def send(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        # A worker that dies while it starts shows when it is read from; here it is only a closed pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(frame)
            await self._process.stdin.drain()

    async def read(self) -> bytes:
        """What it said since; b"" at the end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(READ_BYTES)

    async def ask_stack(self, timeout_s: float = STACK_S) -> None:
        """Have it write the Python stacks of its threads, for `evidence`. Right before it is ended.

        A signal handler in C writes them, so that one which holds the interpreter or ignores signals answers too.
        """
        if self._process.returncode is not None:
            return
        try:
            self._process.send_signal(STACK_SIGNAL)
        except ProcessLookupError:
            return
        until = asyncio.get_running_loop().time() + timeout_s
        size, before = 0, -1
        while (size == 0 or size != before) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(min(0.01, timeout_s / 2))
            size, before = os.fstat(self._stacks.fileno()).st_size, size
        written = os.pread(self._stacks.fileno(), STACK_BYTES, 0)
        self._stack = shortened(written.decode("utf-8", errors="replace"))

    async def end(self, grace_s: float = 0.0) -> None:
        """Make sure that the process is gone. One that has said all it had to gets ``grace_s`` to go by itself."""
        try:
            if grace_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), grace_s)
            self._kill()
            # Unread words keep the pipe open for asyncio, and the process counts as there until its pipes are closed.
            while await self.read():
                pass
            await self._process.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drain, DRAIN_S)
        finally:
            self._kill()
            self._watch.cancel()
            self._stacks.close()
            await asyncio.to_thread(self._folder.remove)  # it may hold a lot

    def _kill(self) -> None:
        # Only while it is not reaped: afterwards the number may belong to somebody else.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._tail += data
            del self._tail[:-TAIL_BYTES]

    async def _watch_memory(self) -> None:
        while self._process.returncode is None:
            held = limits.held_memory(self._process.pid)
            if held is not None and held > self.memory_limit:
                self.memory_seen = held
                await self.ask_stack(STACK_OF_A_HOG_S)
                self._kill()
                return
            await asyncio.sleep(limits.WATCH_INTERVAL_S)

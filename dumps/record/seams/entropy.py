"""Notes what a program draws from the system's entropy.

``os.urandom`` and ``os.getrandom`` (which ``secrets``, ``uuid.uuid4``, ``random.SystemRandom`` and numpy's seeding
use), ``uuid.uuid1``, the seeding of ``random.Random`` from the system, and once at the start the state of ``random``
and of numpy's global generator.

At level "full" the bytes are kept, below it their number. **A full dump so holds key material**: every token, nonce and
session key of Python code that the program drew while it was recorded. Keep such a dump as you keep the keys, encrypt
it, or record at "shape", whose replays draw made-up bytes.

The bytes themselves come from the original function, unchanged; what goes wrong in noting them is swallowed. Draws in
C are not seen: ssl, cryptography, hash randomisation (its seed stands in Program.hash_seed), and OpenSSL's RAND.

Sources: "os.urandom", "os.getrandom", "uuid.uuid1" (16 bytes each), and as `dumps.random_state` writes them
"random.state", "numpy.random.state" (at the start) and "random.seed" (each time a generator was seeded).
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import uuid
from collections.abc import Callable
from types import FrameType
from typing import Any

from dumps.random_state import SIZE, TwisterState
from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import WorldLog, task_name
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.seams.rebind import StandIn, rebind
from dumps.schema import state_pb2 as pb


def install(log: WorldLog) -> Callable[[], None]:
    """Begin to note draws in ``log``; returns the function that ends it."""
    recorder = _Recorder(log)
    recorder.note_states()
    name_temporary_files_anew()

    original_urandom, original_uuid1 = os.urandom, uuid.uuid1
    original_seed = random.Random.seed

    def urandom(size: int, /) -> bytes:
        data = original_urandom(size)
        recorder.note("os.urandom", data)
        return data

    def uuid1(*args: Any, **kwargs: Any) -> uuid.UUID:
        made = original_uuid1(*args, **kwargs)
        recorder.note("uuid.uuid1", made.bytes)
        return made

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original_seed(self, a, version)
        if a is None:
            recorder.note_seeding(self)

    replacements: dict[Any, Any] = {
        original_urandom: StandIn(original_urandom, urandom),
        original_uuid1: StandIn(original_uuid1, uuid1),
    }
    if hasattr(os, "getrandom"):
        original_getrandom = os.getrandom

        def getrandom(size: int, flags: int = 0) -> bytes:
            data = original_getrandom(size, flags)
            recorder.note("os.getrandom", data)
            return data

        replacements[original_getrandom] = StandIn(original_getrandom, getrandom)

    bound_seed = random.seed
    random.Random.seed = seed  # type: ignore[method-assign]
    replacements[bound_seed] = getattr(bound_seed, "__self__", random).seed
    undo_names = rebind(replacements)

    def undo() -> None:
        undo_names()
        random.Random.seed = original_seed  # type: ignore[method-assign]

    return undo


def name_temporary_files_anew() -> None:
    """Have tempfile seed the generator of its names when it next wants one, so that this is seen, or played."""
    if hasattr(tempfile, "_name_sequence"):
        tempfile._name_sequence = None


def _looks_for_the_temporary_folder(frame: FrameType | None) -> bool:
    """tempfile does once in a process, with names of its own; a replay is told the folder."""
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_code.co_name == "_get_default_tempdir":
            return frame.f_globals.get("__name__") == "tempfile"
        frame = frame.f_back
    return False


class _Recorder:
    def __init__(self, log: WorldLog) -> None:
        self._log = log
        self._full = log.level is RecordLevel.FULL
        self._pid = os.getpid()

    def note(self, source: str, data: bytes) -> None:
        # A forked child has another life, and may have inherited the log's lock as another thread held it.
        if os.getpid() != self._pid:
            return
        # Never into the program: a draw that was made must reach whoever asked for it.
        with contextlib.suppress(Exception):
            self._log.add_entropy(
                pb.EntropyDraw(
                    source=source,
                    data=data if self._full else b"",
                    size=len(data),
                    time_ns=monotonic_ns(),
                    task=task_name(),
                )
            )

    def note_seeding(self, generator: random.Random) -> None:
        with contextlib.suppress(Exception):
            if isinstance(generator, random.SystemRandom) or _looks_for_the_temporary_folder(sys._getframe(2)):
                return
            self.note(
                "random.seed", TwisterState.of_random(generator.getstate()).to_bytes() if self._full else bytes(SIZE)
            )

    def note_states(self) -> None:
        with contextlib.suppress(Exception):
            self.note(
                "random.state", TwisterState.of_random(random.getstate()).to_bytes() if self._full else bytes(SIZE)
            )
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is None:
            return
        try:
            state = TwisterState.of_numpy(numpy_random.get_state(legacy=False))
        except Exception:  # another bit generator was set as the global one
            self._log.lost["numpy.random.state"] += 1
            return
        self.note("numpy.random.state", state.to_bytes() if self._full else bytes(SIZE))

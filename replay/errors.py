"""The error tree of the replay package. Each error says what happened, where, and what to do next."""

from __future__ import annotations

# What the extra `engine` brings. Without one of them there is no inference; everything else works.
ENGINE_PACKAGES = frozenset({"torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate"})


class ReplayError(Exception):
    """Root of everything that `replay` raises on purpose. ``remedy`` is one sentence a person can act on.

    ``exit_code`` is that of a command which ends with this error.
    """

    remedy: str = ""
    exit_code: int = 70

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        if remedy:
            self.remedy = remedy


class UsageError(ReplayError):
    """An option or a value that cannot be used. Usually a typo; the message names the nearest valid choice."""

    exit_code = 2


class ProgramDump(UsageError):
    """A dump is that of a program, and an engine's was wanted. A program is replayed with --target app."""


class ModelUnavailable(ReplayError):
    """No weights with the wanted name or fingerprint were found, or they could not be fetched or converted."""

    exit_code = 20


class UnsupportedModel(ReplayError):
    """The weights are there, but their architecture or format is not on the tested list."""

    exit_code = 20


class DeviceUnavailable(ReplayError):
    """The wanted device cannot be used. Usually a machine without a GPU, a driver that does not start in this process,
    or a torch that was built for the CPU alone."""

    exit_code = 20
    remedy = "Use --device cpu."


class EngineNotInstalled(ReplayError):
    """Torch or what comes with it is missing. The base install leaves it out on purpose."""

    exit_code = 20
    remedy = "Install the engine: python -m pip install 'pplx-replay[engine]'; --target schedule needs none."


class KVCacheExhausted(ReplayError):
    """A running request needed a block, the pool had none, and the policy is to raise. Often a pool sized for the
    average request rather than for the sum of the longest ones."""


class PositionOverflow(ReplayError):
    """A token stands beyond the model's table of learned positions. Usually a server's ``max_model_len`` that is larger
    than the model's; on a GPU the same read is an assertion on the device, or a neighbour's memory."""


class NonFiniteLogits(ReplayError):
    """The model's output holds NaN or infinity. Usually a damaged KV block or weights, or an overflow in float16."""


class WorkerDied(ReplayError):
    """The child process that ran a replay ended without a report: killed, crashed, or out of memory."""


class Refused(ReplayError, PermissionError):
    """Replayed code tried to reach the network, another process or a file that is none of its own.

    It is a PermissionError too, so that a library which can do without (a CPU probe, a cache server) does without.
    """

    remedy = "a replay runs on the dump and local weights alone; record what it needs, or report the library"


class BudgetSpent(ReplayError):
    """The time given to a replay or to its loading is over."""

    exit_code = 21

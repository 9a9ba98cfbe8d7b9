"""A dump for people: what failed first, then what it failed in. Everything that comes out of the dump is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dumps.failure_text import describe_failure
from dumps.ledger import grade_name, weakest
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from dumps.tensors import LE32_BYTES
from dumps.text import printable
from replay.cli.program_view import PROGRAM_PARTS
from replay.cli.trace_view import describe_trace

MOST_REQUESTS = 20
MOST_STEPS = 8
MOST_LINES = 12
MOST_TASKS = 12
MOST_FRAMES = 5  # of one stack


def show(dump: Dump) -> Iterator[RenderableType]:
    """What `pplx-state dump` prints, part by part."""
    yield _title(dump)
    for heading, part in _PARTS:
        body = part(dump)
        if body is not None:
            yield Text(f"\n{heading}", style="bold")
            # A padded text is cropped where a console does not wrap, so a text carries its own indent.
            yield _indented(body) if isinstance(body, Text) else Padding(body, (0, 0, 0, 2), expand=False)


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print ``parts``; away from a terminal without the blanks that tables leave at line ends."""
    for part in parts:
        if console.is_terminal:
            console.print(part)
            continue
        with console.capture() as captured:
            console.print(part)
        for line in captured.get().splitlines():
            console.print(Text(line.rstrip()))


def _indented(text: Text) -> Text:
    return Text("\n").join(Text("  ") + line for line in text.split("\n"))


def _title(dump: Dump) -> Text:
    text = Text.assemble(("Dump ", "bold"), (printable(dump.state.manifest.id, 40), "bold cyan"))
    text.append(f"  {printable(str(dump.path), 400)}  {dump.size:,} bytes")
    if dump.torn:
        text.append(f"\nDAMAGED: verified up to byte {dump.torn.offset}. {printable(dump.torn.reason)}", "bold red")
    return text


def _failures(dump: Dump) -> RenderableType:
    failures = dump.state.failures
    if not failures:
        text = Text("no failure is recorded; this dump was made on demand or at the end of its process")
        for entry in (entry for entry in dump.state.ledger if entry.path == "failures" and entry.note):
            text.append(f"\n{printable(entry.note, 400)}")
        return text
    text = Text(describe_failure(dump.state, failures[-1]), style="bold")
    if len(failures) > 1:
        text.append(f"\nbefore it, {len(failures) - 1} more:", "default")
        for failure in failures[-1 - MOST_LINES : -1]:
            text.append(f"\n  {describe_failure(dump.state, failure)}", "default")
    return text


def _origin(dump: Dump) -> RenderableType | None:
    manifest = dump.state.manifest
    pairs = [
        ("reason", manifest.reason),
        ("failed", _failed_at(dump)),
        ("written", _wall_time(manifest.created_ns)),
        ("by", f"pplx-replay {manifest.tool_version or '?'}, pid {manifest.pid}"),
        ("record level", manifest.record_level),
        ("tenant", manifest.tenant),
        ("session", manifest.session),
        ("versions", ", ".join(f"{pair.key} {pair.value}" for pair in manifest.versions)),
        ("platform", manifest.platform_fingerprint[:16]),
        ("launched with", " ".join(manifest.launch_arguments)),
    ]
    return _pairs(pairs)


def _failed_at(dump: Dump) -> str:
    """When the last failure was, on the wall clock: a dump may be recovered hours later. Empty if that is not known."""
    manifest, failures = dump.state.manifest, dump.state.failures
    known = bool(failures) and failures[-1].time_ns and manifest.wall_minus_monotonic_ns
    return _wall_time(failures[-1].time_ns + manifest.wall_minus_monotonic_ns) if known else ""


def _wall_time(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"


def _model(dump: Dump) -> RenderableType | None:
    state = dump.state
    model, engine = state.model, state.engine
    sizes = (
        f"{model.num_layers} layers, {model.num_kv_heads} KV heads of {model.head_dim}, vocabulary {model.vocab_size}"
    )
    pool = f"{engine.num_blocks} blocks of {engine.block_size} tokens, when exhausted: {engine.on_kv_exhausted or '?'}"
    limits = f"{engine.max_model_len} tokens a request, {engine.max_num_seqs} requests, "
    limits += f"{engine.max_num_batched_tokens} tokens a step"
    pairs = [("clients ask for", state.active_model)]
    if state.HasField("model"):
        pairs += [
            ("model", f"{model.name or '?'} ({model.architecture or '?'}, {model.dtype or '?'})"),
            ("sizes", sizes),
            ("weights", model.weights_fingerprint[:16]),
            ("quantisation", model.quantisation),
            ("LoRA", model.lora),
        ]
    if state.HasField("engine"):
        pairs += [("engine", f"{engine.engine or '?'}, kernels {engine.kernels or '?'}"), ("KV pool", pool)]
        pairs += [("limits", limits), ("switched on", ", ".join(_switches(state)))]
    return _pairs(pairs)


def _switches(state: pb.RuntimeState) -> Iterator[str]:
    """What is off unless somebody asked for it. The defects among it are in the dump's notes, too."""
    engine = state.engine
    if engine.prefix_cache:
        yield "prefix cache"
    if engine.checks:
        yield "checks"
    if engine.kv_quant_bits:
        yield f"KV cache of {engine.kv_quant_bits}-bit integers"
    for quirk in state.quirks[:MOST_LINES]:
        yield f"quirk {quirk.name}"


def _requests(dump: Dump) -> RenderableType | None:
    requests = dump.state.requests
    if not requests:
        return None
    blamed = (
        dump.state.failures[-1].request if dump.state.failures and dump.state.failures[-1].HasField("request") else -1
    )
    table = _table("#", "id", "status", "finish", "prompt", "output", "arrived", "finished")
    shown = list(range(min(len(requests), MOST_REQUESTS)))
    if MOST_REQUESTS <= blamed < len(requests):
        shown.append(blamed)
    for index in shown:
        request = requests[index]
        end = f"{request.finish_reason} ({request.finish_cause})" if request.finish_cause else request.finish_reason
        table.add_row(
            str(index),
            printable(request.id, 64),
            printable(request.status, 12),
            printable(end, 40),
            str(request.num_prompt_tokens),
            str(request.num_output_tokens),
            f"step {request.arrival_step}" if request.HasField("arrival_step") else "",
            f"step {request.finish_step}" if request.HasField("finish_step") else "",
            style="bold red" if index == blamed else None,
        )
    return _with_rest(table, len(requests) - len(shown), "requests")


def _steps(dump: Dump) -> RenderableType | None:
    steps = dump.state.steps
    if not steps:
        return None
    table = _table("step", "requests", "tokens", "drawn", "what happened")
    for step in steps[-MOST_STEPS:]:
        table.add_row(
            str(step.index),
            str(len(step.scheduled)),
            str(sum(chunk.num_tokens for chunk in step.scheduled)),
            str(sum(chunk.sampled for chunk in step.scheduled)),
            printable("; ".join(_events(step))),
        )
    return _with_rest(table, len(steps) - min(len(steps), MOST_STEPS), "steps before these")


def _events(step: pb.Step) -> Iterator[str]:
    if step.admitted:
        yield f"admitted {_list(step.admitted)}"
    for event in step.exhausted:
        yield f"{event.request} found {event.blocks_free} of {event.blocks_needed} blocks: {event.outcome}"
    for name in ("finished", "aborted"):
        for end in getattr(step, name):
            yield f"{name} {end.request} ({end.cause or end.reason})"
    if not step.completed:
        yield "not completed"


def _kv(dump: Dump) -> RenderableType | None:
    state = dump.state
    if not state.HasField("kv"):
        return None
    kv = state.kv
    unknown = weakest(state, "kv.free_blocks").grade == pb.ABSENT
    free = "the free ones not known" if unknown else f"{len(kv.free_blocks) // LE32_BYTES} free"
    share = f" ({kv.used_bytes / kv.max_bytes:.1%})" if kv.max_bytes else ""
    holders = sorted(kv.tables, key=lambda table: -len(table.blocks))
    held = [
        f"{table.request}: {len(table.blocks) // LE32_BYTES} blocks, {table.num_tokens} tokens" for table in holders
    ]
    more = f"; and {len(held) - MOST_LINES} more" if len(held) > MOST_LINES else ""
    return _pairs(
        [
            ("blocks", f"{kv.num_blocks} of {kv.block_size} tokens, {free}"),
            ("quantised to", f"{kv.quant_bits} bits" if kv.quant_bits else ""),
            ("kv_cache_used_bytes", f"{kv.used_bytes:,}{share}"),
            ("max_kv_cache_bytes", f"{kv.max_bytes:,}"),
            ("seq_len_exceeded_at", f"{kv.seq_len_exceeded_at}" if kv.HasField("seq_len_exceeded_at") else ""),
            ("held by request", "; ".join(held[:MOST_LINES]) + more),
            ("contents", f"{kv.contents_selection or 'none'}, {len(kv.contents_blocks) // LE32_BYTES} blocks"),
        ]
    )


def _trace(dump: Dump) -> RenderableType | None:
    lines = describe_trace(dump.state)
    return Text("\n".join(lines)) if lines else None


def _stacks(dump: Dump) -> RenderableType | None:
    lines = []
    for exception in dump.state.exceptions[-3:]:
        lines.append(f"{printable(exception.type, 80)}: {printable(exception.message)}")
        lines += _told_frames(exception.frames)
    threads = dump.state.threads
    # What a program was doing is in its tasks; the stack of its thread shows an event loop that waits.
    tasks = [one for one in threads if one.kind == "asyncio-task" and not one.current]
    shown = tasks[:MOST_TASKS] if dump.state.HasField("program") else []
    for task in shown:
        lines.append(f"task {printable(task.name, 60)}:")
        lines += [_frame(frame) for frame in ([one for one in task.frames if one.in_app] or task.frames)[:MOST_FRAMES]]
    for thread in (one for one in threads if one.current):
        lines.append(f"thread {printable(thread.name, 60)}, in which it showed:")
        lines += _told_frames(thread.frames)
    others = sum(not one.current for one in threads) - len(shown)
    if others:
        lines.append(f"{others} more stack{'s' * (others != 1)}: --field threads")
    return Text("\n".join(lines)) if lines else None


def _told_frames(frames: Sequence[pb.Frame]) -> list[str]:
    """The innermost frame, and then those of the program before any of a library's: a long chain of calls in one says
    little. "..." stands for what is left out between two."""
    own = [index for index, frame in enumerate(frames) if frame.in_app]
    others = [index for index in range(len(frames)) if index not in own]
    shown = sorted(list(dict.fromkeys([0, *own, *others]))[:MOST_FRAMES]) if frames else []
    lines: list[str] = []
    for before, index in zip([-1, *shown], shown, strict=False):
        lines += ["  ..."] * (index != before + 1)
        lines.append(_frame(frames[index]))
    return lines


def _frame(frame: pb.Frame) -> str:
    return f"  {printable(frame.function, 80)} ({printable(frame.filename, 120)}:{frame.line})"


def _sections(dump: Dump) -> RenderableType | None:
    if not dump.sections:
        return None
    table = _table("section", "part", "encoding", "raw bytes", "stored", "tensor", "offset")
    for info in dump.sections[:MOST_REQUESTS]:
        tensor = f"{info.dtype} {list(info.shape)}" if info.dtype else ""
        sizes = (f"{info.raw_size:,}", f"{info.data_size:,}")
        table.add_row(printable(info.kind, 40), str(info.part), info.encoding, *sizes, tensor, str(info.data_offset))
    return _with_rest(table, len(dump.sections) - MOST_REQUESTS, "section parts")


def _ledger(dump: Dump) -> RenderableType | None:
    if not dump.state.ledger:
        return None
    table = _table("field", "grade", "why")
    for entry in sorted(dump.state.ledger, key=lambda entry: -entry.grade)[:MOST_REQUESTS]:
        table.add_row(printable(entry.path, 80), grade_name(entry.grade), printable(entry.note))
    return _with_rest(table, len(dump.state.ledger) - MOST_REQUESTS, "entries")


def _notes(dump: Dump) -> RenderableType | None:
    state = dump.state
    lines = [f"quirk in force: {printable(f'{quirk.name} {quirk.detail}')}" for quirk in state.quirks[:MOST_LINES]]
    for one in state.redactions[:MOST_LINES]:
        lines.append(f"{printable(one.what, 20)}: {printable(one.path, 80)} {printable(one.reason)}")
    return Text("\n".join(lines)) if lines else None


_PARTS: tuple[tuple[str, Callable[[Dump], RenderableType | None]], ...] = (
    ("What failed", _failures),
    ("Stacks", _stacks),
    *((heading, lambda dump, part=part: part(dump.state)) for heading, part in PROGRAM_PARTS),
    ("Where it comes from", _origin),
    ("Model and engine", _model),
    ("Requests", _requests),
    ("Last steps", _steps),
    ("KV cache at the end of the record", _kv),
    ("Trace", _trace),
    ("Sections", _sections),
    ("Fidelity ledger", _ledger),
    ("Quirks and redactions", _notes),
)


def _pairs(pairs: list[tuple[str, str]]) -> RenderableType | None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in pairs:
        if value:
            table.add_row(name, Text(printable(value, 400)))
    return table if table.row_count else None


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in headings:
        number = heading in (
            "#",
            "prompt",
            "output",
            "tokens",
            "requests",
            "drawn",
            "part",
            "raw bytes",
            "stored",
            "offset",
        )
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    return table


def _with_rest(table: Table, rest: int, what: str) -> RenderableType:
    return Group(table, Text(f"... and {rest} more {what}", style="dim")) if rest > 0 else table


def _list(indices: object) -> str:
    values = [str(index) for index in indices]  # type: ignore[attr-defined]
    return ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")

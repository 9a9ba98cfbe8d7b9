from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Grade(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRADE_UNSPECIFIED: _ClassVar[Grade]
    OBSERVED: _ClassVar[Grade]
    INFERRED: _ClassVar[Grade]
    SYNTHESISED: _ClassVar[Grade]
    ABSENT: _ClassVar[Grade]
GRADE_UNSPECIFIED: Grade
OBSERVED: Grade
INFERRED: Grade
SYNTHESISED: Grade
ABSENT: Grade

class RuntimeState(_message.Message):
    __slots__ = ("manifest", "active_model", "model", "engine", "failures", "requests", "scheduler", "steps", "kv", "threads", "exceptions", "ledger", "trailer", "seals", "padding", "sections", "context_stack", "tool_calls", "syscalls", "exchanges", "descriptors", "metrics", "trace_events", "logs", "quirks", "redactions", "program", "clock_changes", "entropy")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    EXCEPTIONS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    SEALS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_STACK_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    SYSCALLS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TRACE_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    QUIRKS_FIELD_NUMBER: _ClassVar[int]
    REDACTIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CLOCK_CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    active_model: str
    model: Model
    engine: EngineConfig
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    scheduler: Scheduler
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    kv: KvCache
    threads: _containers.RepeatedCompositeFieldContainer[Thread]
    exceptions: _containers.RepeatedCompositeFieldContainer[ExceptionInfo]
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    trailer: int
    seals: _containers.RepeatedCompositeFieldContainer[Seal]
    padding: bytes
    sections: _containers.RepeatedCompositeFieldContainer[Section]
    context_stack: _containers.RepeatedCompositeFieldContainer[ContextFrame]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    syscalls: _containers.RepeatedCompositeFieldContainer[Syscall]
    exchanges: _containers.RepeatedCompositeFieldContainer[Exchange]
    descriptors: _containers.RepeatedCompositeFieldContainer[Descriptor]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSample]
    trace_events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    logs: _containers.RepeatedCompositeFieldContainer[LogRecord]
    quirks: _containers.RepeatedCompositeFieldContainer[Quirk]
    redactions: _containers.RepeatedCompositeFieldContainer[Redaction]
    program: Program
    clock_changes: _containers.RepeatedCompositeFieldContainer[ClockChange]
    entropy: _containers.RepeatedCompositeFieldContainer[EntropyDraw]
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., active_model: _Optional[str] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., engine: _Optional[_Union[EngineConfig, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., scheduler: _Optional[_Union[Scheduler, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., kv: _Optional[_Union[KvCache, _Mapping]] = ..., threads: _Optional[_Iterable[_Union[Thread, _Mapping]]] = ..., exceptions: _Optional[_Iterable[_Union[ExceptionInfo, _Mapping]]] = ..., ledger: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., trailer: _Optional[int] = ..., seals: _Optional[_Iterable[_Union[Seal, _Mapping]]] = ..., padding: _Optional[bytes] = ..., sections: _Optional[_Iterable[_Union[Section, _Mapping]]] = ..., context_stack: _Optional[_Iterable[_Union[ContextFrame, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., syscalls: _Optional[_Iterable[_Union[Syscall, _Mapping]]] = ..., exchanges: _Optional[_Iterable[_Union[Exchange, _Mapping]]] = ..., descriptors: _Optional[_Iterable[_Union[Descriptor, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[MetricSample, _Mapping]]] = ..., trace_events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ..., quirks: _Optional[_Iterable[_Union[Quirk, _Mapping]]] = ..., redactions: _Optional[_Iterable[_Union[Redaction, _Mapping]]] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., clock_changes: _Optional[_Iterable[_Union[ClockChange, _Mapping]]] = ..., entropy: _Optional[_Iterable[_Union[EntropyDraw, _Mapping]]] = ...) -> None: ...

class LedgerEntry(_message.Message):
    __slots__ = ("path", "grade", "note")
    PATH_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    path: str
    grade: Grade
    note: str
    def __init__(self, path: _Optional[str] = ..., grade: _Optional[_Union[Grade, str]] = ..., note: _Optional[str] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("id", "reason", "created_ns", "wall_minus_monotonic_ns", "tool_version", "record_level", "debug_level", "tenant", "session", "pid", "hostname_hash", "versions", "platform", "platform_fingerprint", "launch_arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_MINUS_MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    TOOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORD_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DEBUG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_HASH_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    created_ns: int
    wall_minus_monotonic_ns: int
    tool_version: str
    record_level: str
    debug_level: int
    tenant: str
    session: str
    pid: int
    hostname_hash: str
    versions: _containers.RepeatedCompositeFieldContainer[KeyValue]
    platform: _containers.RepeatedCompositeFieldContainer[KeyValue]
    platform_fingerprint: str
    launch_arguments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ..., created_ns: _Optional[int] = ..., wall_minus_monotonic_ns: _Optional[int] = ..., tool_version: _Optional[str] = ..., record_level: _Optional[str] = ..., debug_level: _Optional[int] = ..., tenant: _Optional[str] = ..., session: _Optional[str] = ..., pid: _Optional[int] = ..., hostname_hash: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., platform: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., platform_fingerprint: _Optional[str] = ..., launch_arguments: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "architecture", "weights_fingerprint", "tokenizer_fingerprint", "dtype", "quantisation", "vocab_size", "max_position_embeddings", "num_layers", "num_kv_heads", "head_dim", "eos_token_ids", "tensor_parallel", "pipeline_parallel", "expert_parallel", "lora", "draft_model", "attention_backend")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    EXPERT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    weights_fingerprint: str
    tokenizer_fingerprint: str
    dtype: str
    quantisation: str
    vocab_size: int
    max_position_embeddings: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    lora: str
    draft_model: str
    attention_backend: str
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., dtype: _Optional[str] = ..., quantisation: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_position_embeddings: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., expert_parallel: _Optional[int] = ..., lora: _Optional[str] = ..., draft_model: _Optional[str] = ..., attention_backend: _Optional[str] = ...) -> None: ...

class EngineConfig(_message.Message):
    __slots__ = ("engine", "block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "on_kv_exhausted", "kernels", "num_threads", "prefix_cache", "kv_quant_bits", "checks")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ON_KV_EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    KV_QUANT_BITS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    on_kv_exhausted: str
    kernels: str
    num_threads: int
    prefix_cache: bool
    kv_quant_bits: int
    checks: bool
    def __init__(self, engine: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., on_kv_exhausted: _Optional[str] = ..., kernels: _Optional[str] = ..., num_threads: _Optional[int] = ..., prefix_cache: _Optional[bool] = ..., kv_quant_bits: _Optional[int] = ..., checks: _Optional[bool] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "invariant", "exception_type", "message", "request", "step", "position", "time_ns", "kv_cache_used_bytes", "max_kv_cache_bytes", "seq_len_exceeded_at", "non_finite", "read", "frame", "exchange")
    KIND_FIELD_NUMBER: _ClassVar[int]
    INVARIANT_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQ_LEN_EXCEEDED_AT_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    invariant: str
    exception_type: str
    message: str
    request: int
    step: int
    position: int
    time_ns: int
    kv_cache_used_bytes: int
    max_kv_cache_bytes: int
    seq_len_exceeded_at: int
    non_finite: NonFinite
    read: SlotRead
    frame: str
    exchange: str
    def __init__(self, kind: _Optional[str] = ..., invariant: _Optional[str] = ..., exception_type: _Optional[str] = ..., message: _Optional[str] = ..., request: _Optional[int] = ..., step: _Optional[int] = ..., position: _Optional[int] = ..., time_ns: _Optional[int] = ..., kv_cache_used_bytes: _Optional[int] = ..., max_kv_cache_bytes: _Optional[int] = ..., seq_len_exceeded_at: _Optional[int] = ..., non_finite: _Optional[_Union[NonFinite, _Mapping]] = ..., read: _Optional[_Union[SlotRead, _Mapping]] = ..., frame: _Optional[str] = ..., exchange: _Optional[str] = ...) -> None: ...

class NonFinite(_message.Message):
    __slots__ = ("where", "layer", "tensor", "block", "slot", "position", "written_by_step")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    where: str
    layer: int
    tensor: str
    block: int
    slot: int
    position: int
    written_by_step: int
    def __init__(self, where: _Optional[str] = ..., layer: _Optional[int] = ..., tensor: _Optional[str] = ..., block: _Optional[int] = ..., slot: _Optional[int] = ..., position: _Optional[int] = ..., written_by_step: _Optional[int] = ...) -> None: ...

class SlotRead(_message.Message):
    __slots__ = ("block", "slot", "writer", "writer_position", "written_by_step")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    WRITER_POSITION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BY_STEP_FIELD_NUMBER: _ClassVar[int]
    block: int
    slot: int
    writer: str
    writer_position: int
    written_by_step: int
    def __init__(self, block: _Optional[int] = ..., slot: _Optional[int] = ..., writer: _Optional[str] = ..., writer_position: _Optional[int] = ..., written_by_step: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_tokens: int
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., min_tokens: _Optional[int] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "arrival_ns", "arrival_step", "endpoint", "status", "finish_reason", "finish_cause", "finish_step", "num_prompt_tokens", "num_output_tokens", "prompt_token_ids", "output_token_ids", "output_digests", "sampling", "prompt_text", "output_text", "stream", "multimodal_hashes", "grammar_state", "sample_index", "flags")
    ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_NS_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_STEP_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FINISH_CAUSE_FIELD_NUMBER: _ClassVar[int]
    FINISH_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_STATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    arrival_ns: int
    arrival_step: int
    endpoint: str
    status: str
    finish_reason: str
    finish_cause: str
    finish_step: int
    num_prompt_tokens: int
    num_output_tokens: int
    prompt_token_ids: bytes
    output_token_ids: bytes
    output_digests: bytes
    sampling: SamplingParams
    prompt_text: str
    output_text: str
    stream: bool
    multimodal_hashes: _containers.RepeatedScalarFieldContainer[str]
    grammar_state: str
    sample_index: int
    flags: InternalFlags
    def __init__(self, id: _Optional[str] = ..., arrival_ns: _Optional[int] = ..., arrival_step: _Optional[int] = ..., endpoint: _Optional[str] = ..., status: _Optional[str] = ..., finish_reason: _Optional[str] = ..., finish_cause: _Optional[str] = ..., finish_step: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., output_token_ids: _Optional[bytes] = ..., output_digests: _Optional[bytes] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., prompt_text: _Optional[str] = ..., output_text: _Optional[str] = ..., stream: _Optional[bool] = ..., multimodal_hashes: _Optional[_Iterable[str]] = ..., grammar_state: _Optional[str] = ..., sample_index: _Optional[int] = ..., flags: _Optional[_Union[InternalFlags, _Mapping]] = ...) -> None: ...

class InternalFlags(_message.Message):
    __slots__ = ("early_exit", "fallback_trace")
    EARLY_EXIT_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    early_exit: float
    fallback_trace: bool
    def __init__(self, early_exit: _Optional[float] = ..., fallback_trace: _Optional[bool] = ...) -> None: ...

class Scheduler(_message.Message):
    __slots__ = ("waiting", "running", "next_step", "start")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    waiting: _containers.RepeatedScalarFieldContainer[int]
    running: _containers.RepeatedScalarFieldContainer[int]
    next_step: int
    start: Keyframe
    def __init__(self, waiting: _Optional[_Iterable[int]] = ..., running: _Optional[_Iterable[int]] = ..., next_step: _Optional[int] = ..., start: _Optional[_Union[Keyframe, _Mapping]] = ...) -> None: ...

class Keyframe(_message.Message):
    __slots__ = ("before_step", "free_blocks", "running", "waiting", "prefix_hashes")
    BEFORE_STEP_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    before_step: int
    free_blocks: bytes
    running: _containers.RepeatedCompositeFieldContainer[RunningRequest]
    waiting: _containers.RepeatedScalarFieldContainer[int]
    prefix_hashes: _containers.RepeatedCompositeFieldContainer[PrefixHash]
    def __init__(self, before_step: _Optional[int] = ..., free_blocks: _Optional[bytes] = ..., running: _Optional[_Iterable[_Union[RunningRequest, _Mapping]]] = ..., waiting: _Optional[_Iterable[int]] = ..., prefix_hashes: _Optional[_Iterable[_Union[PrefixHash, _Mapping]]] = ...) -> None: ...

class RunningRequest(_message.Message):
    __slots__ = ("request", "num_computed_tokens", "num_output_tokens", "block_table")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    request: int
    num_computed_tokens: int
    num_output_tokens: int
    block_table: bytes
    def __init__(self, request: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., block_table: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("index", "start_ns", "scheduled", "exhausted", "admitted", "finished", "completed", "arrived", "aborted", "prefix_hits")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    index: int
    start_ns: int
    scheduled: _containers.RepeatedCompositeFieldContainer[Scheduled]
    exhausted: _containers.RepeatedCompositeFieldContainer[Exhausted]
    admitted: _containers.RepeatedScalarFieldContainer[int]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    completed: bool
    arrived: _containers.RepeatedScalarFieldContainer[int]
    aborted: _containers.RepeatedCompositeFieldContainer[Finished]
    prefix_hits: _containers.RepeatedCompositeFieldContainer[PrefixHit]
    def __init__(self, index: _Optional[int] = ..., start_ns: _Optional[int] = ..., scheduled: _Optional[_Iterable[_Union[Scheduled, _Mapping]]] = ..., exhausted: _Optional[_Iterable[_Union[Exhausted, _Mapping]]] = ..., admitted: _Optional[_Iterable[int]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., completed: _Optional[bool] = ..., arrived: _Optional[_Iterable[int]] = ..., aborted: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., prefix_hits: _Optional[_Iterable[_Union[PrefixHit, _Mapping]]] = ...) -> None: ...

class PrefixHit(_message.Message):
    __slots__ = ("request", "num_tokens", "blocks", "copied_from")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FROM_FIELD_NUMBER: _ClassVar[int]
    request: int
    num_tokens: int
    blocks: bytes
    copied_from: int
    def __init__(self, request: _Optional[int] = ..., num_tokens: _Optional[int] = ..., blocks: _Optional[bytes] = ..., copied_from: _Optional[int] = ...) -> None: ...

class Scheduled(_message.Message):
    __slots__ = ("request", "start", "num_tokens", "new_blocks", "sampled_token", "logits_digest", "sampled")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGITS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    request: int
    start: int
    num_tokens: int
    new_blocks: bytes
    sampled_token: int
    logits_digest: int
    sampled: bool
    def __init__(self, request: _Optional[int] = ..., start: _Optional[int] = ..., num_tokens: _Optional[int] = ..., new_blocks: _Optional[bytes] = ..., sampled_token: _Optional[int] = ..., logits_digest: _Optional[int] = ..., sampled: _Optional[bool] = ...) -> None: ...

class Exhausted(_message.Message):
    __slots__ = ("request", "blocks_needed", "blocks_free", "outcome", "victim", "before_scheduled")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VICTIM_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    request: int
    blocks_needed: int
    blocks_free: int
    outcome: str
    victim: int
    before_scheduled: int
    def __init__(self, request: _Optional[int] = ..., blocks_needed: _Optional[int] = ..., blocks_free: _Optional[int] = ..., outcome: _Optional[str] = ..., victim: _Optional[int] = ..., before_scheduled: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("request", "reason", "cause")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    request: int
    reason: str
    cause: str
    def __init__(self, request: _Optional[int] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class KvCache(_message.Message):
    __slots__ = ("block_size", "num_blocks", "num_layers", "num_kv_heads", "head_dim", "dtype", "quant_bits", "used_bytes", "max_bytes", "seq_len_exceeded_at", "free_blocks", "tables", "ref_counts", "contents_blocks", "contents_selection", "prefix_hashes", "block_history")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANT_BITS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQ_LEN_EXCEEDED_AT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    REF_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_SELECTION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HISTORY_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_blocks: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    quant_bits: int
    used_bytes: int
    max_bytes: int
    seq_len_exceeded_at: int
    free_blocks: bytes
    tables: _containers.RepeatedCompositeFieldContainer[BlockTable]
    ref_counts: bytes
    contents_blocks: bytes
    contents_selection: str
    prefix_hashes: _containers.RepeatedCompositeFieldContainer[PrefixHash]
    block_history: _containers.RepeatedCompositeFieldContainer[BlockEvent]
    def __init__(self, block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., quant_bits: _Optional[int] = ..., used_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., seq_len_exceeded_at: _Optional[int] = ..., free_blocks: _Optional[bytes] = ..., tables: _Optional[_Iterable[_Union[BlockTable, _Mapping]]] = ..., ref_counts: _Optional[bytes] = ..., contents_blocks: _Optional[bytes] = ..., contents_selection: _Optional[str] = ..., prefix_hashes: _Optional[_Iterable[_Union[PrefixHash, _Mapping]]] = ..., block_history: _Optional[_Iterable[_Union[BlockEvent, _Mapping]]] = ...) -> None: ...

class BlockTable(_message.Message):
    __slots__ = ("request", "blocks", "num_tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: int
    blocks: bytes
    num_tokens: int
    def __init__(self, request: _Optional[int] = ..., blocks: _Optional[bytes] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class PrefixHash(_message.Message):
    __slots__ = ("block", "hash", "parent")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    block: int
    hash: bytes
    parent: bytes
    def __init__(self, block: _Optional[int] = ..., hash: _Optional[bytes] = ..., parent: _Optional[bytes] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("step", "block", "event", "request")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    step: int
    block: int
    event: str
    request: int
    def __init__(self, step: _Optional[int] = ..., block: _Optional[int] = ..., event: _Optional[str] = ..., request: _Optional[int] = ...) -> None: ...

class Section(_message.Message):
    __slots__ = ("kind", "part", "encoding", "raw_size", "dtype", "shape", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    RAW_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: str
    part: int
    encoding: str
    raw_size: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, kind: _Optional[str] = ..., part: _Optional[int] = ..., encoding: _Optional[str] = ..., raw_size: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("start", "directory", "sha256")
    START_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    start: int
    directory: bytes
    sha256: bytes
    def __init__(self, start: _Optional[int] = ..., directory: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Directory(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DirectoryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DirectoryEntry, _Mapping]]] = ...) -> None: ...

class DirectoryEntry(_message.Message):
    __slots__ = ("kind", "part", "offset", "length")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    kind: str
    part: int
    offset: int
    length: int
    def __init__(self, kind: _Optional[str] = ..., part: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("function", "filename", "line", "module", "in_app")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    IN_APP_FIELD_NUMBER: _ClassVar[int]
    function: str
    filename: str
    line: int
    module: str
    in_app: bool
    def __init__(self, function: _Optional[str] = ..., filename: _Optional[str] = ..., line: _Optional[int] = ..., module: _Optional[str] = ..., in_app: _Optional[bool] = ...) -> None: ...

class Thread(_message.Message):
    __slots__ = ("thread_id", "name", "current", "frames", "kind", "awaited_by")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AWAITED_BY_FIELD_NUMBER: _ClassVar[int]
    thread_id: int
    name: str
    current: bool
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    kind: str
    awaited_by: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, thread_id: _Optional[int] = ..., name: _Optional[str] = ..., current: _Optional[bool] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., kind: _Optional[str] = ..., awaited_by: _Optional[_Iterable[int]] = ...) -> None: ...

class ExceptionInfo(_message.Message):
    __slots__ = ("type", "message", "frames", "link")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    link: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., link: _Optional[str] = ...) -> None: ...

class ContextFrame(_message.Message):
    __slots__ = ("stack_depth", "last_message_id", "kind", "payload_json")
    STACK_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LAST_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    stack_depth: int
    last_message_id: str
    kind: str
    payload_json: str
    def __init__(self, stack_depth: _Optional[int] = ..., last_message_id: _Optional[str] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json", "result_json", "status", "started_ns", "deadline_ns", "finished_ns", "request", "error_type", "error_message", "task", "within")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    result_json: str
    status: str
    started_ns: int
    deadline_ns: int
    finished_ns: int
    request: int
    error_type: str
    error_message: str
    task: str
    within: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., result_json: _Optional[str] = ..., status: _Optional[str] = ..., started_ns: _Optional[int] = ..., deadline_ns: _Optional[int] = ..., finished_ns: _Optional[int] = ..., request: _Optional[int] = ..., error_type: _Optional[str] = ..., error_message: _Optional[str] = ..., task: _Optional[str] = ..., within: _Optional[str] = ...) -> None: ...

class Syscall(_message.Message):
    __slots__ = ("time_ns", "name", "args", "ret", "errno_name", "duration_ns", "data", "data_partial", "tid", "task")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    RET_FIELD_NUMBER: _ClassVar[int]
    ERRNO_NAME_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    TID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    name: str
    args: _containers.RepeatedScalarFieldContainer[str]
    ret: str
    errno_name: str
    duration_ns: int
    data: bytes
    data_partial: bool
    tid: int
    task: str
    def __init__(self, time_ns: _Optional[int] = ..., name: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., ret: _Optional[str] = ..., errno_name: _Optional[str] = ..., duration_ns: _Optional[int] = ..., data: _Optional[bytes] = ..., data_partial: _Optional[bool] = ..., tid: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...

class Exchange(_message.Message):
    __slots__ = ("id", "method", "url", "request_headers", "request_body", "status", "response_headers", "chunks", "error", "started_ns", "direction", "framing", "error_message", "ended_ns", "task", "occurrence", "call_site", "client", "connect_ns", "sent_ns", "within", "request_chunks")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HEADERS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BODY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    FRAMING_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    CALL_SITE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CONNECT_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    method: str
    url: str
    request_headers: _containers.RepeatedCompositeFieldContainer[KeyValue]
    request_body: bytes
    status: int
    response_headers: _containers.RepeatedCompositeFieldContainer[KeyValue]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    error: str
    started_ns: int
    direction: str
    framing: str
    error_message: str
    ended_ns: int
    task: str
    occurrence: int
    call_site: _containers.RepeatedCompositeFieldContainer[Frame]
    client: str
    connect_ns: int
    sent_ns: int
    within: str
    request_chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, id: _Optional[str] = ..., method: _Optional[str] = ..., url: _Optional[str] = ..., request_headers: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., request_body: _Optional[bytes] = ..., status: _Optional[int] = ..., response_headers: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., error: _Optional[str] = ..., started_ns: _Optional[int] = ..., direction: _Optional[str] = ..., framing: _Optional[str] = ..., error_message: _Optional[str] = ..., ended_ns: _Optional[int] = ..., task: _Optional[str] = ..., occurrence: _Optional[int] = ..., call_site: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., client: _Optional[str] = ..., connect_ns: _Optional[int] = ..., sent_ns: _Optional[int] = ..., within: _Optional[str] = ..., request_chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data", "delay_ns", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    delay_ns: int
    size: int
    def __init__(self, data: _Optional[bytes] = ..., delay_ns: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("entry", "kind", "arguments_json", "started_ns", "wall_minus_monotonic_ns", "hash_seed", "python_version", "finished", "ended_ns", "environment", "argv", "temporary_folder", "parent_pid")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_MINUS_MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    HASH_SEED_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_FOLDER_FIELD_NUMBER: _ClassVar[int]
    PARENT_PID_FIELD_NUMBER: _ClassVar[int]
    entry: str
    kind: str
    arguments_json: str
    started_ns: int
    wall_minus_monotonic_ns: int
    hash_seed: str
    python_version: str
    finished: bool
    ended_ns: int
    environment: _containers.RepeatedCompositeFieldContainer[KeyValue]
    argv: _containers.RepeatedScalarFieldContainer[str]
    temporary_folder: str
    parent_pid: int
    def __init__(self, entry: _Optional[str] = ..., kind: _Optional[str] = ..., arguments_json: _Optional[str] = ..., started_ns: _Optional[int] = ..., wall_minus_monotonic_ns: _Optional[int] = ..., hash_seed: _Optional[str] = ..., python_version: _Optional[str] = ..., finished: _Optional[bool] = ..., ended_ns: _Optional[int] = ..., environment: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., argv: _Optional[_Iterable[str]] = ..., temporary_folder: _Optional[str] = ..., parent_pid: _Optional[int] = ...) -> None: ...

class ClockChange(_message.Message):
    __slots__ = ("monotonic_ns", "wall_minus_monotonic_ns")
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_MINUS_MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    monotonic_ns: int
    wall_minus_monotonic_ns: int
    def __init__(self, monotonic_ns: _Optional[int] = ..., wall_minus_monotonic_ns: _Optional[int] = ...) -> None: ...

class EntropyDraw(_message.Message):
    __slots__ = ("source", "data", "size", "time_ns", "task")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    source: str
    data: bytes
    size: int
    time_ns: int
    task: str
    def __init__(self, source: _Optional[str] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ..., time_ns: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...

class Descriptor(_message.Message):
    __slots__ = ("fd", "kind", "target")
    FD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    fd: int
    kind: str
    target: str
    def __init__(self, fd: _Optional[int] = ..., kind: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class MetricSample(_message.Message):
    __slots__ = ("name", "time_ns", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    time_ns: int
    value: float
    def __init__(self, name: _Optional[str] = ..., time_ns: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("name", "phase", "cuda_event_ts_ns", "task_enter_ts_us", "correlation_id", "duration_ns", "args", "step", "request")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CUDA_EVENT_TS_NS_FIELD_NUMBER: _ClassVar[int]
    TASK_ENTER_TS_US_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    phase: str
    cuda_event_ts_ns: int
    task_enter_ts_us: int
    correlation_id: int
    duration_ns: int
    args: _containers.RepeatedCompositeFieldContainer[KeyValue]
    step: int
    request: int
    def __init__(self, name: _Optional[str] = ..., phase: _Optional[str] = ..., cuda_event_ts_ns: _Optional[int] = ..., task_enter_ts_us: _Optional[int] = ..., correlation_id: _Optional[int] = ..., duration_ns: _Optional[int] = ..., args: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., step: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("time_ns", "level", "logger", "message")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    level: str
    logger: str
    message: str
    def __init__(self, time_ns: _Optional[int] = ..., level: _Optional[str] = ..., logger: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Quirk(_message.Message):
    __slots__ = ("name", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    detail: str
    def __init__(self, name: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Redaction(_message.Message):
    __slots__ = ("path", "what", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    what: str
    reason: str
    def __init__(self, path: _Optional[str] = ..., what: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

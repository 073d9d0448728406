"""Every metric of GET /metrics: name, kind, labels, buckets, and the sentence that scrapers and docs/metrics.md show.

Names, labels and units are vLLM's where it has the metric, so that dashboards made for it read this server too. What
it has no name for begins with `homebase_`. No label takes a value from a client.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from server.admission.decide import RefusalCode
from server.snapshot import ServerState

Kind = Literal["counter", "gauge", "histogram", "info"]

WAIT_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds that a request waits, reads or runs: a short prompt takes a tenth, 100,000 tokens on a Mac take minutes."""

ANSWER_BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
"""Seconds of a whole answer: agents let one model write for minutes."""

TOKEN_GAP_BUCKETS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
"""Seconds between tokens, and of steps; half a second, the default of `engine.decode_stall_ms`, is an edge."""

TOKEN_BUCKETS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288)
"""Tokens of a prompt or an answer: agents send tens of thousands."""


class Family(msgspec.Struct, frozen=True):
    """One metric, whatever the values of its labels."""

    name: str
    """As a scrape shows it, but for the suffixes of histograms."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """Values of the last label that are shown from the start: a first refusal must read as a rise from 0."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the infinite one."""


MODEL = ("model_name",)

# What vLLM names.

REQUESTS_RUNNING = Family(
    "vllm:num_requests_running", "gauge", "Streams in flight whose prompt is being read, or that decode.", MODEL
)
REQUESTS_WAITING = Family(
    "vllm:num_requests_waiting", "gauge", "Streams in flight that the engine has not begun with.", MODEL
)
KV_CACHE_USAGE = Family(
    "vllm:kv_cache_usage_perc",
    "gauge",
    "Memory promised to the contexts of streams in flight, at the full length that each was granted, over what the "
    "memory budget has for contexts; 1 means 100 percent. Absent without a budget.",
    MODEL,
)
PROMPT_TOKENS = Family(
    "vllm:prompt_tokens_total",
    "counter",
    "Prompt tokens read, chunk by chunk: computed, or taken over from the prefix cache or another stream.",
    MODEL,
)
GENERATION_TOKENS = Family(
    "vllm:generation_tokens_total",
    "counter",
    "Tokens generated, the one that ends an answer included, and those that came after a stop string or a hang-up.",
    MODEL,
)
REQUEST_SUCCESS = Family(
    "vllm:request_success_total",
    "counter",
    "Streams that have ended, by how: stop and length are whole answers; abort is a client that left or an operator "
    "that stopped it; error is a failure.",
    (*MODEL, "finished_reason"),
    ("stop", "length", "abort", "error"),
)
TIME_TO_FIRST_TOKEN = Family(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "From admission to the first token.",
    MODEL,
    bounds=WAIT_BUCKETS,
)
INTER_TOKEN_LATENCY = Family(
    "vllm:inter_token_latency_seconds",
    "histogram",
    "Between two emissions of a stream, as its reader sees it. Tokens that drafting makes in one step come together "
    "and count as one emission; per token see vllm:request_time_per_output_token_seconds.",
    MODEL,
    bounds=TOKEN_GAP_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = Family(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Decode time of a whole answer over its tokens after the first one; answers of one token have none.",
    MODEL,
    bounds=TOKEN_GAP_BUCKETS,
)
REQUEST_LATENCY = Family(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "From admission to the end of a whole answer; streams that were cut are not in it.",
    MODEL,
    bounds=ANSWER_BUCKETS,
)
QUEUE_TIME = Family(
    "vllm:request_queue_time_seconds",
    "histogram",
    "From admission to the beginning of the first step with this stream in it.",
    MODEL,
    bounds=WAIT_BUCKETS,
)
PREFILL_TIME = Family(
    "vllm:request_prefill_time_seconds",
    "histogram",
    "From the beginning of the first step with this stream in it to its first token.",
    MODEL,
    bounds=WAIT_BUCKETS,
)
DECODE_TIME = Family(
    "vllm:request_decode_time_seconds",
    "histogram",
    "From the first token to the last one of a whole answer.",
    MODEL,
    bounds=ANSWER_BUCKETS,
)
REQUEST_PROMPT_TOKENS = Family(
    "vllm:request_prompt_tokens", "histogram", "Prompt tokens of a whole answer.", MODEL, bounds=TOKEN_BUCKETS
)
REQUEST_GENERATION_TOKENS = Family(
    "vllm:request_generation_tokens", "histogram", "Tokens of a whole answer.", MODEL, bounds=TOKEN_BUCKETS
)
PREFIX_CACHE_QUERIES = Family(
    "vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", MODEL
)
PREFIX_CACHE_HITS = Family(
    "vllm:prefix_cache_hits_total", "counter", "Prompt tokens that the prefix cache had, and were taken over.", MODEL
)
DRAFTS = Family("vllm:spec_decode_num_drafts_total", "counter", "Decode steps of a stream that verified drafts.", MODEL)
DRAFT_TOKENS = Family("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted by the MTP head.", MODEL)
ACCEPTED_TOKENS = Family(
    "vllm:spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that the model agreed with.", MODEL
)
ACCEPTED_TOKENS_PER_POS = Family(
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "counter",
    "Accepted tokens by their place in the draft, the first being 0; a place appears when a draft reached it.",
    (*MODEL, "position"),
)

# What only we know.

IN_FLIGHT = Family("homebase_requests_in_flight", "gauge", "Slots that are taken.")
IN_FLIGHT_LIMIT = Family("homebase_requests_in_flight_limit", "gauge", "Slots that there are: policy.max_in_flight.")
IN_FLIGHT_PEAK = Family(
    "homebase_requests_in_flight_peak", "gauge", "The most slots that were taken at once since the start."
)
ADMITTED = Family("homebase_requests_admitted_total", "counter", "Requests that were given a slot.")
REFUSED = Family(
    "homebase_requests_refused_total",
    "counter",
    "Requests that were not admitted, by the code that their clients were told.",
    ("code",),
    get_args(RefusalCode),
)
CANCELLED = Family(
    "homebase_requests_cancelled_total",
    "counter",
    "Streams that their client left or the operator stopped, by the phase they were in.",
    ("phase",),
    ("waiting", "prefill", "decode"),
)
FAILED = Family(
    "homebase_requests_failed_total",
    "counter",
    "Streams that failed: the model failed on this one alone (sequence_failed), the engine ended under it "
    "(engine_dead), or it was a stall or a fault in making the answer (other).",
    ("code",),
    ("sequence_failed", "engine_dead", "other"),
)
UPSTREAM_REQUESTS = Family(
    "homebase_upstream_requests_total",
    "counter",
    "Requests that an upstream had to answer. Those in flight there have no other series here.",
    ("upstream",),
)
UPSTREAM_FAILURES = Family(
    "homebase_upstream_failures_total",
    "counter",
    "Of them, those that failed by its fault: not sent because it was down, not answered, answered with a 5xx status, "
    "or broken off.",
    ("upstream",),
)
UPSTREAM_IN_FLIGHT = Family(
    "homebase_upstream_requests_in_flight", "gauge", "Requests that an upstream answers now.", ("upstream",)
)
UPSTREAM_UP = Family(
    "homebase_upstream_up",
    "gauge",
    "0 from an upstream's third failure in a row until it has answered again, else 1.",
    ("upstream",),
)
CACHED_PROMPT_TOKENS = Family(
    "homebase_prompt_tokens_cached_total",
    "counter",
    "Prompt tokens that were not computed: from the prefix cache, or from another stream with the same beginning.",
    MODEL,
)
STEP = Family(
    "homebase_step_seconds",
    "histogram",
    "Duration of engine steps, by what was in them: a chunk of a prompt, decoding streams, or both (mixed).",
    ("work",),
    ("prefill", "decode", "mixed"),
    TOKEN_GAP_BUCKETS,
)
PREFILL_RATE = Family(
    "homebase_prefill_tokens_per_second", "gauge", "Prompt tokens computed in the last 2 seconds, per second."
)
DECODE_RATE = Family(
    "homebase_decode_tokens_per_second", "gauge", "Tokens generated in the last 2 seconds, per second."
)
ACCEPTANCE = Family(
    "homebase_draft_acceptance_ratio",
    "gauge",
    "Accepted over drafted tokens, of the last 128 decode steps of all streams. Absent while nothing decodes, and when "
    "nothing was drafted in those.",
)
MLX_ACTIVE = Family("homebase_mlx_active_bytes", "gauge", "Memory that MLX has in use.")
MLX_CACHE = Family("homebase_mlx_cache_bytes", "gauge", "Memory that MLX has freed and keeps for later.")
MLX_PEAK = Family("homebase_mlx_peak_bytes", "gauge", "The most memory that MLX had in use since the start.")
RESIDENT = Family("homebase_resident_bytes", "gauge", "Memory of the process in RAM, as the system counts it.")
MACHINE = Family("homebase_machine_bytes", "gauge", "RAM of this machine.")
BUDGET = Family(
    "homebase_memory_budget_bytes", "gauge", "What MLX may hold: engine.memory_budget_gib. Absent without a budget."
)
PROMISED = Family(
    "homebase_memory_promised_bytes", "gauge", "What the contexts of streams in flight may come to take at full length."
)
PREFIX_CACHE = Family(
    "homebase_prefix_cache_bytes", "gauge", "Memory of the prefix cache. Absent while it may take none."
)
PREFIX_CACHE_BUDGET = Family(
    "homebase_prefix_cache_budget_bytes", "gauge", "What the prefix cache may take now. Absent while that is none."
)
PREFIX_CACHE_DISK = Family(
    "homebase_prefix_cache_disk_bytes",
    "gauge",
    "Files of the prefix cache on disk. Absent while it may take no memory.",
)
KEEP_ALIVE = Family(
    "homebase_keep_alive_seconds", "gauge", "How often a stream without news carries a comment: server.keep_alive_s."
)
STATE = Family(
    "homebase_state",
    "gauge",
    "1 for the state that the server is in, 0 for the others.",
    ("state",),
    get_args(ServerState),
)
STEP_AGE = Family(
    "homebase_step_age_seconds", "gauge", "Since the engine last finished a step. Absent while it has no work."
)
UPTIME = Family("homebase_uptime_seconds", "gauge", "Since the server began.")
BUILD = Family("homebase_build_info", "info", "The version that runs.", ("version",))
MODEL_INFO = Family(
    "homebase_model_info",
    "info",
    "What is served. Absent until the model is loaded.",
    (*MODEL, "architecture", "dtype", "quantization", "device"),
)

FAMILIES: tuple[Family, ...] = tuple(each for each in tuple(globals().values()) if isinstance(each, Family))
"""All of them, in this order."""

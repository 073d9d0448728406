"""Slots and memory as gauges: label, bar, symbol and word, numbers. Each knows which end is bad."""

from __future__ import annotations

from console.format import format_bytes, format_count, format_ratio, format_seconds, pad
from console.widgets.lines import Line, Span, fit_line, line_width
from console.widgets.phases import is_over, phase_sign
from console.widgets.plot import beside
from server.snapshot import MemoryView, Snapshot

MEMORY_HIGH_RATIO = 0.80
"""Share of the memory budget, or of the machine where there is none, from which the gauge says HIGH. FULL is what
admission says: a request would be refused."""
REFUSING_FOR_S = 60.0
"""So long after a refusal the slots gauge says REFUSING, or REFUSED once a place is free; full slots alone are
nothing bad."""

HELD, YIELDING, PEAK, FREE = "━", "╍", "╿", "─"
LABEL_WIDTH = 8
WORD_WIDTH = 13
AMOUNT_WIDTH = 18
STACKED_AMOUNT_WIDTH = 28
"""Bytes stand here too where there is no row for the parts."""


def gauge_lines(snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """Both gauges and the counters in so many rows, 2 or 3: two columns from 100 cells, else one below the other."""
    if width < 100:
        return [slots_gauge(snapshot, width, True), memory_gauge(snapshot.memory, width, True)]
    left = (width - 3) // 2
    right = width - left - 3
    parts = memory_parts(snapshot.memory, right, rows - 1)
    return beside(
        [slots_gauge(snapshot, left, False), counters(snapshot, left)],
        [memory_gauge(snapshot.memory, right, False), *parts, *[()] * (rows - 1 - len(parts))],
        left,
        3,
    )


def slots_gauge(snapshot: Snapshot, width: int, is_stacked: bool) -> Line:
    """Slots taken of all; full is normal, refusing is not. Stacked, its columns line up with memory's."""
    admission = snapshot.admission
    symbol, word, role = slots_word(snapshot)
    amount = f"{admission.in_flight} of {admission.max_in_flight}"
    room = max(6, width - LABEL_WIDTH - WORD_WIDTH - (STACKED_AMOUNT_WIDTH if is_stacked else 9))
    return _gauge("slots", _slot_cells(snapshot, room), room, (symbol, word, role), amount, width)


def slots_word(snapshot: Snapshot) -> tuple[str, str, str]:
    """Symbol, word and colour of the slots gauge."""
    admission = snapshot.admission
    is_full = admission.in_flight >= admission.max_in_flight
    last = admission.recent_refusals[0].time_s if admission.recent_refusals else None
    if last is not None and snapshot.time_s - last < REFUSING_FOR_S:
        return "▲", "REFUSING" if is_full else "REFUSED", "state-warning"
    if is_full:
        return "●", "FULL", "state-ok"
    return ("●", "OK", "state-ok") if admission.in_flight else ("○", "IDLE", "text-muted")


def _slot_cells(snapshot: Snapshot, room: int) -> Line:
    total = max(1, snapshot.admission.max_in_flight, snapshot.admission.in_flight)
    phases = [phase_sign(stream)[2] for stream in snapshot.streams if not is_over(stream)]
    roles = [*phases, *["state-ok"] * snapshot.admission.in_flight][: snapshot.admission.in_flight]
    if total * 2 > room:
        filled = round(room * len(roles) / total)
        return (("━" * filled, "state-ok"), ("─" * (room - filled), "context-free"))
    size = min(24, room // total) - 1
    spans: list[Span] = []
    for slot in range(total):
        spans.append(("━" * size, roles[slot]) if slot < len(roles) else ("─" * size, "context-free"))
        spans.append((" ", ""))
    return tuple(spans)


def memory_gauge(memory: MemoryView, width: int, is_stacked: bool) -> Line:
    """What MLX holds of its budget, then what gives way by itself, with a mark at the peak; high is bad."""
    sign, whole = memory_word(memory), format_bytes(_whole_bytes(memory))
    ratio = format_ratio(_held_ratio(memory))
    amount = f"{ratio}, {format_bytes(memory.held_bytes)} of {whole}" if is_stacked else f"{ratio} of {whole}"
    room = max(6, width - LABEL_WIDTH - WORD_WIDTH - (STACKED_AMOUNT_WIDTH if is_stacked else AMOUNT_WIDTH))
    return _gauge("memory", _memory_bar(memory, room, sign[2]), room, sign, amount, width)


def _held_ratio(memory: MemoryView) -> float | None:
    whole = _whole_bytes(memory)
    return memory.held_bytes / whole if whole else None


def _whole_bytes(memory: MemoryView) -> int:
    return memory.budget_bytes or memory.machine_bytes


def memory_word(memory: MemoryView) -> tuple[str, str, str]:
    """Symbol, word and colour of the memory gauge."""
    ratio = _held_ratio(memory)
    if memory.is_full:
        return "✕", "FULL", "state-error"
    if ratio is None:
        return "○", "UNKNOWN", "text-muted"
    return ("▲", "HIGH", "state-warning") if ratio >= MEMORY_HIGH_RATIO else ("●", "OK", "state-ok")


def _memory_bar(memory: MemoryView, room: int, role: str) -> Line:
    whole = max(1, _whole_bytes(memory), memory.active_bytes + memory.cache_bytes, memory.peak_bytes)
    held = _cells(memory.held_bytes, whole, room)
    yielding = min(room - held, _cells(_yielding_bytes(memory), whole, room))
    peak = min(room - 1, _cells(memory.peak_bytes, whole, room))
    spans: list[Span] = [(HELD * held, role), (YIELDING * yielding, "gauge-cache")]
    used = held + yielding
    if peak <= used:
        return (*spans, (FREE * (room - used), "context-free"))
    return (
        *spans,
        (FREE * (peak - used), "context-free"),
        (PEAK, "text-strong"),
        (FREE * (room - peak - 1), "context-free"),
    )


def _yielding_bytes(memory: MemoryView) -> int:
    return memory.active_bytes - memory.held_bytes + memory.cache_bytes


def _cells(part: int, whole: int, room: int) -> int:
    return max(1, round(room * part / whole)) if part > 0 else 0


def memory_parts(memory: MemoryView, width: int, rows: int) -> list[Line]:
    """The amounts behind the memory gauge, each whole or not at all, in at most so many rows.

    What matters least is left out first; what is promised to running streams matters most once nothing else is left.
    """
    promised = _part("", "promised", memory.promised_bytes)
    parts = [
        _part(HELD, "in use", memory.held_bytes),
        *([promised] if memory.is_full else []),
        _part(PEAK, "peak", memory.peak_bytes),
        _part(YIELDING, "freed", memory.cache_bytes),
        *([_part(YIELDING, "prefixes", memory.prefix_cache_bytes)] if memory.prefix_cache_bytes else []),
        *([] if memory.is_full or not memory.promised_bytes else [promised]),
    ]
    for count in range(len(parts), 0, -1):
        lines = _lay_out(parts[:count], width - LABEL_WIDTH)
        if len(lines) <= rows:
            return [((" " * LABEL_WIDTH, ""), *line) for line in lines]
    return []


_PART_ROLES = {HELD: "state-ok", YIELDING: "gauge-cache", PEAK: "text-strong"}


def _part(sign: str, name: str, number: int) -> Line:
    head: Line = ((f"{sign} ", _PART_ROLES[sign]),) if sign else ()
    return (*head, (f"{name} ", "text-muted"), (format_bytes(number), ""))


def _lay_out(parts: list[Line], width: int) -> list[Line]:
    """Parts side by side in as few lines as they need."""
    lines: list[Line] = []
    for part in parts:
        if lines and line_width((*lines[-1], *part)) + 2 <= width:
            lines[-1] = (*lines[-1], ("  ", ""), *part)
        else:
            lines.append(part)
    return lines


def counters(snapshot: Snapshot, width: int) -> Line:
    """Since the start: admitted, how they ended, refused, and the engine's last step."""
    ended = snapshot.admission.finished_by_outcome
    facts = [
        ("served", format_count(snapshot.admission.admitted_total)),
        ("peak", str(snapshot.admission.peak_in_flight)),
    ]
    facts += [("refused", format_count(snapshot.admission.refused_total))]
    facts += [(name, format_count(ended[name])) for name in ("cancelled", "failed") if ended.get(name)]
    if snapshot.engine.step_s is not None:
        facts.append(("step", format_seconds(snapshot.engine.step_s)))
    spans: list[Span] = [(" " * LABEL_WIDTH, "")]
    for name, value in facts:
        part: list[Span] = [(f"{name} ", "text-muted"), (f"{value}  ", "")]
        if line_width((*spans, *part)) <= width + 2:
            spans += part
    return fit_line(tuple(spans), width)


def _gauge(label: str, bar: Line, room: int, sign: tuple[str, str, str], amount: str, width: int) -> Line:
    symbol, word, role = sign
    return fit_line(
        (
            (f" {pad(label, LABEL_WIDTH - 1)}", "text-muted"),
            *fit_line(bar, room),
            (f"  {pad(f'{symbol} {word}', WORD_WIDTH - 2)}", f"{role} bold"),
            (f" {amount}", ""),
        ),
        width,
    )

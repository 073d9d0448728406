"""Two observers as one: telemetry and the tally are told the same."""

from __future__ import annotations

from server.events import EventRing, PrefillAdvanced, Refused, SequenceEnded
from server.metrics import families
from server.metrics.observers import Observers
from server.metrics.tally import Tally
from server.telemetry import StreamIdentity, Telemetry


def test_both_are_told_of_everything() -> None:
    ring, tally = EventRing(), Tally()
    telemetry = Telemetry(ring)
    observers = Observers(telemetry, tally)
    observers.stream_opened("r", StreamIdentity("s", None, "parent", "curl", "m", 10, 0, 5, 100, True, 0.0))
    observers.fold((PrefillAdvanced("r", 10, 10, 0.1),))
    (stream,) = telemetry.streams()
    assert (stream.id, stream.lane, stream.prompt_tokens, stream.phase) == ("r", "parent", 10, "prefill")
    observers.refused(Refused(0.0, "q", "draining", "", 503, 1, 1, 1, "s", "unknown", "c", 0, None))
    observers.fold((SequenceEnded("r", "cancelled", 1.0),))
    observers.stream_ended("r", "cancelled", "client closed the connection")
    assert len(ring.after(0)) == 2
    assert telemetry.open_streams == tally.followed == 0
    assert tally.series.counts(families.PROMPT_TOKENS, "m") == {("m",): 10}
    assert tally.series.counts(families.REFUSED, "m")[("draining",)] == 1
    assert tally.series.counts(families.CANCELLED, "m")[("prefill",)] == 1

"""What streams and the engine do, folded into one snapshot."""

from server.telemetry.facts import ServerFacts, StreamIdentity
from server.telemetry.telemetry import Telemetry

__all__ = ["ServerFacts", "StreamIdentity", "Telemetry"]

"""The same numbers for Prometheus: counts that only ever rise, gauges of the snapshot, and their text."""

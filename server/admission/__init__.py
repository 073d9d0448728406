"""Admission: who is asking, and whether a request may start now."""

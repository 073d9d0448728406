"""Requests whose model another server has: passed on, shown, and where that is governed admitted, like our own."""

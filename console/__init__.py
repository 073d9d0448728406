"""The console: a Textual program that shows the server's snapshot and edits its policy."""

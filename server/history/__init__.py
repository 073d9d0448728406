"""What is remembered of requests after they are over: facts and figures in SQLite, never a text of theirs."""

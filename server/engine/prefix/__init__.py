"""The prefix cache: what was computed of a prompt or a reply is kept for whoever begins with the same tokens."""

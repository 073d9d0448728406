"""What all dialects share: from what is asked, past admission, to an answer's parts."""

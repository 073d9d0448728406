"""What the operator does over HTTP: all under /homebase. No limit of the server counts it."""

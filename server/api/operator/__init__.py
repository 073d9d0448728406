"""The operator's own endpoints under /homebase. No limit of the server counts them."""

"""homebase.toml as a file: where each key stands, the smallest edit, the atomic replace, the watch, the template."""

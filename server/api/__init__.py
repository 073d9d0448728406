"""The HTTP surface: wire shapes, dialects and statuses live here and go no deeper."""

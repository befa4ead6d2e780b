"""The terminal: the only part that imports terminal libraries."""

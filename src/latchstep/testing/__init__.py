"""Fakes and conformance suites for users' own journals, models and tools. Nothing here is imported by the rest."""

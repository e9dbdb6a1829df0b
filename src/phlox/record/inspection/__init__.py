"""Inspection of records: summaries, and differences between two records."""

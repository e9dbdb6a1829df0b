"""File formats of records, one module each."""

"""Loading a record: matching it with a module, renaming, hints and reports."""

"""Loggers: the rows of a training in files, and in the trackers of others."""

"""Trials of a learner that change nothing: the search for a learning rate, and a dry run."""

"""The loop: the states of a run and the transitions between them, its data, and its events."""

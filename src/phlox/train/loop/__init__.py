"""The loop: the states of a run and what leads from one to the other, its data, and its events."""

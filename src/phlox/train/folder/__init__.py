"""The folder of a run: what it is, who writes to it, and where it ran."""

"""The folder of a run: its description, its lock, and the environment of the run."""

"""Observers of a training: callbacks, loggers, checkpoints, views, and the folder of a run."""

"""Checkpoints: the state of a training in files, written in the background."""

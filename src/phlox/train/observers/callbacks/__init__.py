"""Callbacks that watch a value, stop a training, change it, or measure its speed."""

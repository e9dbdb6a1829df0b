"""The costs of a training step on a mesh that need not exist, by formulas."""

"""Modules as nested PyTrees: one node a module, one key a level, and an array for each parameter.

The children of a node are its fields that hold parameters or modules: the array of a parameter, a module as it is, and
lists, tuples and dicts as levels of their own. Everything else is in the structure. A parameter or a module at
several paths is in the tree at the first of them. The nearest module above all of them leaves it out at the others, and
puts it there again.

Two views of a model that differ in their modes alone (training, tape, frozen parameters) have equal structures, so that
averages and masks by `jax.tree.map` work between them. But a program that JAX has traced depends on the modes, so
structures that belong to a trace are compared with their modes.
"""

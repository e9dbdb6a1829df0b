"""Modules as nested PyTrees: one node a module, one key a level, and an array for each parameter.

The children of a node are its fields that hold parameters or modules: the array of a parameter, a module as it is, and
lists, tuples and dicts as levels of their own. Everything else is in the structure. A parameter or a module that stands
in several places is in the first of them; in the others it is left out by the nearest module above both, which puts it
there again.

Two views of a model that differ in their modes alone (training, tape, frozen parameters) have equal structures, so that
averages and masks by `jax.tree.map` work between them. A program that JAX has traced depends on the modes, though: so
the structures that a trace was made with are compared with them.
"""

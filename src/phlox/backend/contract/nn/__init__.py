"""Composites of neural networks, as single operations with their own derivative.

A composite `f` is three functions: `f(*operands, *options)`; `f_forward`, which returns the result and the values that
its derivative needs; and `f_backward(saved, g, needed, *options)`, which returns one gradient for each operand, None if
it is not `needed`. The definitions use only other operations of the contract, so they work on any backend and can
themselves be differentiated; an engine overrides them where it does better.
"""

from __future__ import annotations

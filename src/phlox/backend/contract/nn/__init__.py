"""Composites of neural networks, as single operations with their own derivative.

A composite `f` comes as three functions: `f(*operands, *options)`; `f_forward`, which returns the result together with
what its derivative needs; and `f_backward(saved, g, needed, *options)`, which returns one gradient an operand, None
where `needed` says that nobody asks. The definitions here use other operations of the contract only, so they serve any
backend and can themselves be differentiated; an engine overrides them where it does better.
"""

from __future__ import annotations

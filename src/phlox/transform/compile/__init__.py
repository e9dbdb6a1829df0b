"""`compile`: a whole step as one program.

In the order of a call: `api` (what a user holds), `signature` (arrays on one side, structure on the other; `call_cache`
for a call that is like the last one), `trace` (the function on tracers), `executable` (the program, made once for every
signature), `outputs`. `multi_step` makes several steps one program; `donation` says whose memory is taken.
"""

from __future__ import annotations

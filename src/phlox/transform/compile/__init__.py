"""`compile`: a whole step as one program.

In the order of a call: `api` (the user's object), `signature` (separates arrays and structure; `call_cache` for a call
like the last one), `trace` (calls the function on tracers), `executable` (the program, one for every signature),
`outputs`. `multi_step` makes one program of several steps; `donation` decides whose memory is reused.
"""

from __future__ import annotations

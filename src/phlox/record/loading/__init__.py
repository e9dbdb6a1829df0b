"""From a record to what is loaded of it: what matches, what is missing, what was probably meant."""

from __future__ import annotations

"""Adapters: rules that convert another library's record into one of Phlox, and back."""

from __future__ import annotations

from phlox.interop.adapter.adapter import Adapter as Adapter
from phlox.interop.adapter.rules import Rule as Rule
from phlox.interop.adapter.rules import convert as convert
from phlox.interop.adapter.rules import default as default
from phlox.interop.adapter.rules import drop as drop
from phlox.interop.adapter.rules import ignore as ignore
from phlox.interop.adapter.rules import join as join
from phlox.interop.adapter.rules import rename as rename
from phlox.interop.adapter.rules import split as split
from phlox.interop.adapter.rules import transpose as transpose

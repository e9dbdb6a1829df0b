"""Debugging: find NaN and infinities, compare engines, profile layers, and capture their outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.backend.tracing.checks import checks
from phlox.lazy import lazily
from phlox.transform.compile.recompiles import Change, Recompile, explain_recompiles

if TYPE_CHECKING:
    from phlox.debug.capturing import Capture as Capture
    from phlox.debug.capturing import capture as capture
    from phlox.debug.comparison import compare as compare
    from phlox.debug.comparison_report import Comparison as Comparison
    from phlox.debug.nonfinite import find_nan as find_nan
    from phlox.debug.nonfinite import find_nonfinite as find_nonfinite
    from phlox.debug.notebook import to_html as to_html
    from phlox.debug.origins import NonFinite as NonFinite
    from phlox.debug.profile_report import Profile as Profile
    from phlox.debug.profiling import profile as profile

__all__ = [
    "Capture",
    "Change",
    "Comparison",
    "NonFinite",
    "Profile",
    "Recompile",
    "capture",
    "checks",
    "compare",
    "explain_recompiles",
    "find_nan",
    "find_nonfinite",
    "profile",
    "to_html",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "capturing": "Capture capture",
        "comparison": "compare",
        "comparison_report": "Comparison",
        "nonfinite": "find_nan find_nonfinite",
        "notebook": "to_html",
        "origins": "NonFinite",
        "profile_report": "Profile",
        "profiling": "profile",
    },
)

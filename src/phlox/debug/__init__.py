"""Debugging: find NaN and infinities, compare engines, profile layers, and capture their outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.backend.tracing.checks import checks as checks
from phlox.lazy import lazily
from phlox.transform.compile.recompiles import Change as Change
from phlox.transform.compile.recompiles import Recompile as Recompile
from phlox.transform.compile.recompiles import explain_recompiles as explain_recompiles

if TYPE_CHECKING:
    from phlox.debug.capturing import Capture as Capture
    from phlox.debug.capturing import capture as capture
    from phlox.debug.comparison import compare as compare
    from phlox.debug.comparison_report import Comparison as Comparison
    from phlox.debug.nonfinite import find_nan as find_nan
    from phlox.debug.notebook import to_html as to_html
    from phlox.debug.origins import NonFinite as NonFinite
    from phlox.debug.profile_report import Profile as Profile
    from phlox.debug.profiling import profile as profile

__getattr__, __dir__ = lazily(
    __name__,
    {
        "capturing": "Capture capture",
        "comparison": "compare",
        "comparison_report": "Comparison",
        "nonfinite": "find_nan",
        "notebook": "to_html",
        "origins": "NonFinite",
        "profile_report": "Profile",
        "profiling": "profile",
    },
    here="Change Recompile checks explain_recompiles",
)

"""`python -m phlox.cli`."""

from __future__ import annotations

import sys

from phlox.cli.main import main

sys.exit(main())

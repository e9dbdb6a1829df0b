"""`python -m phlox.testing.edges` prints the page of the edge-case contract."""

from __future__ import annotations

import sys


def main() -> None:
    """Write the page to standard output."""
    from phlox.testing.conformance.edge import page
    from phlox.testing.conformance.edges import EDGES

    sys.stdout.write(page(EDGES))


if __name__ == "__main__":
    main()

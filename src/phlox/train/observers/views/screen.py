"""`Screen`: a terminal with lines that scroll away above, and lines below that are redrawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from phlox.errors import ExtraNotInstalledError
from phlox.train.events import Values
from phlox.train.observers.views.text import Line, Snapshot, epoch_lines, live_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_STYLES = {"best": "bold green", "bar": "cyan", "warn": "yellow"}


class Screen:
    """A terminal: lines that scroll away above, and lines below that are redrawn. At the end it restores the cursor."""

    def __init__(self, stream: TextIO) -> None:
        try:
            from rich.console import Console
        except ImportError as error:
            raise ExtraNotInstalledError(
                "the live view needs rich, which is not installed; install Phlox with the extra 'train'"
            ) from error
        self.console: Console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._now = Snapshot()
        self._head: tuple[Line, int] | None = None  # the last one printed, and how many lines ago

    def open(self, now: Snapshot) -> None:
        """Begin to draw."""
        from rich.live import Live

        self._now, self._head = now, None
        self._live = Live(console=self.console, get_renderable=self._draw, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def show(self, now: Snapshot) -> None:
        """Redraw the lower lines."""
        self._now = now
        if self._live is not None:
            self._live.refresh()

    def epoch(self, label: str, train: Values, validation: Values, seconds: float | None, best: set[str]) -> None:
        """Print the line of an epoch, and before it the head of the table if none is on the screen."""
        head, line = epoch_lines(label, train, validation, seconds, best, self.console.width)
        if self._head is None or self._head[0] != head or self._head[1] > max(self.console.height - 8, 12):
            self._print(head)
            self._head = head, 0
        self._head = head, self._head[1] + 1
        self._print(line)

    def close(self) -> None:
        """Stop drawing, keep the lines, and put the cursor below them."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> Any:
        # The terminal writes ^C after the last line; after a full line this would wrap, and shift all later lines.
        width, ascii_only = max(self.console.width - 3, 1), not _writes_blocks(self.console)
        return self._text(live_lines(self._now, width, ascii_only=ascii_only))

    def _print(self, line: Line) -> None:
        self.console.print(self._text([line]), no_wrap=True, overflow="crop", crop=True)

    def _text(self, lines: list[Line]) -> Text:
        from rich.text import Text

        text, encoding = Text(no_wrap=True, overflow="crop", end=""), self.console.encoding
        for number, line in enumerate(lines):
            text.append("\n" if number else "")
            for piece, style in line:
                text.append(piece.encode(encoding, "replace").decode(encoding), _STYLES.get(style, style) or None)
        return text


def _writes_blocks(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")

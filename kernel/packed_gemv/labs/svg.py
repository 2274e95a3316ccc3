"""A small SVG writer: shapes with class names, one style sheet for light and dark, an accessible title.

Colour only repeats what a label or the weight of a line says already.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

#: Colours by name: on a light page, on a dark one.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9aa4af"),
    "line": ("#8c959f", "#6e7681"),
    "panel": ("#f1f4f7", "#1c232c"),
    "bad": ("#b3261e", "#ff8a80"),
    "t0": ("#cfe3ff", "#1a4573"),
    "t1": ("#ffe2ad", "#614305"),
    "t2": ("#c8efd2", "#185331"),
    "t3": ("#e7d8fb", "#553284"),
}
_FILLS = ("panel", "t0", "t1", "t2", "t3")


def _rules(dark: bool) -> str:
    rules = [f".{name}{{fill:{COLOURS[name][dark]}}}" for name in _FILLS]
    ink, line, bad = (COLOURS[name][dark] for name in ("ink", "line", "bad"))
    rules += [
        f"text{{fill:{ink}}}text.soft{{fill:{COLOURS['soft'][dark]}}}text.bad{{fill:{bad}}}",
        f".cell{{stroke:{line}}}.rule{{stroke:{line}}}",
        f".mark{{stroke:{ink}}}.wrong{{stroke:{bad}}}.solid{{fill:{ink}}}",
    ]
    return "".join(rules)


_STYLE = (
    "text{font:13px ui-sans-serif,system-ui,sans-serif}"
    ".code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px}"
    ".small{font-size:11px;word-spacing:-2px}"
    ".head{font-size:15px;font-weight:600}.bold{font-weight:700}"
    ".mid{text-anchor:middle}.end{text-anchor:end}"
    ".cell{stroke-width:1}.rule{fill:none;stroke-width:1}"
    ".mark{fill:none;stroke-width:2.5}.wrong{fill:none;stroke-width:2.5;stroke-dasharray:5 3}"
    f"{_rules(dark=False)}@media(prefers-color-scheme:dark){{{_rules(dark=True)}}}"
)


class Drawing:
    """Shapes in the order in which they are drawn.

    Args:
        width, height: of the view, in units of which text is 13 high.
        title: what it is. description: what it shows, for those who do not see it.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._size = width, height
        self._head = title, description
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, of: str) -> None:
        """A rectangle of class ``of``."""
        sides = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._shapes.append(f'<rect class="{of}" {sides}/>')

    def text(self, x: float, y: float, said: str, of: str = "") -> None:
        """Text whose baseline starts, or with class ``mid`` or ``end`` is centred or ends, at (x, y)."""
        kind = f' class="{of}"' if of else ""
        self._shapes.append(f'<text{kind} x="{_n(x)}" y="{_n(y)}">{escape(said)}</text>')

    def path(self, points: str, of: str = "rule") -> None:
        """A path in SVG's own words."""
        self._shapes.append(f'<path class="{of}" d="{points}"/>')

    def svg(self) -> str:
        """The whole file."""
        (width, height), (title, description) = self._size, self._head
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label={quoteattr(title)}>\n'
            f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n"
            f"<style>{_STYLE}</style>\n" + "\n".join(self._shapes) + "\n</svg>\n"
        )


def _n(value: float) -> str:
    """A coordinate, as short as it can be written."""
    return f"{value:.1f}".removesuffix(".0")

#!/usr/bin/env python3
"""Draws the screen of a terminal as SVG: reads `tmux capture-pane -e -p` and writes a picture.

    tmux capture-pane -e -p | tools/terminal_svg.py --title 'driftq top' > top.svg

Knows the sixteen colors, bold, dim, underlined and reversed; other escape sequences are an error.
"""

import argparse
import re
import sys
from dataclasses import dataclass, replace
from html import escape

CELL_WIDTH = 8.4
LINE_HEIGHT = 18
FONT_SIZE = 14
MARGIN = 14
TITLE_HEIGHT = 30
BACKGROUND = "#14181f"
FOREGROUND = "#d7dce2"
FRAME = "#2a313c"
# The order of the codes 30 to 37, then the bright 90 to 97.
COLORS = [
    "#3b4252", "#e5606b", "#7fc77c", "#e3b65c", "#6aa5e8", "#c58be0", "#5fc3c8", "#d7dce2",
    "#6b7686", "#f07f88", "#9ddb9a", "#f0cc80", "#8fbdf2", "#d7abec", "#86d8dc", "#ffffff",
]  # fmt: skip
SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m")
# Characters with at most single spaces between them.
PART = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True)
class Style:
    """How a run of characters looks."""

    color: int | None = None
    bold: bool = False
    dim: bool = False
    underlined: bool = False
    reversed: bool = False


FLAGS = {1: "bold", 2: "dim", 4: "underlined", 7: "reversed"}
CLEARED = {22: ("bold", "dim"), 24: ("underlined",), 27: ("reversed",), 39: ()}


def restyled(style: Style, codes: str) -> Style:
    """The style after a sequence of codes."""
    numbers = iter(int(text or 0) for text in (codes or "0").split(";"))
    for code in numbers:
        if code == 38:
            # 38;5;N: a color by its number, of which the first sixteen are known here.
            kind, color = next(numbers), next(numbers)
            if kind != 5 or color >= len(COLORS):
                raise ValueError(f"the color {kind};{color} is not known")
            style = replace(style, color=color)
        elif code == 0:
            style = Style()
        elif code in FLAGS:
            style = replace(style, **{FLAGS[code]: True})
        elif 30 <= code <= 37:
            style = replace(style, color=code - 30)
        elif 90 <= code <= 97:
            style = replace(style, color=code - 90 + 8)
        elif code in CLEARED:
            style = replace(style, **dict.fromkeys(CLEARED[code], False))
            style = replace(style, color=None) if code == 39 else style
        elif code != 49:
            raise ValueError(f"the code {code} is not known")
    return style


def runs(line: str, style: Style) -> tuple[list[tuple[int, str, Style]], Style]:
    """The parts of a line that look alike, with their columns, and the style at its end."""
    parts, column, at = [], 0, 0
    for match in [*SEQUENCE.finditer(line), None]:
        text = line[at : match.start() if match else None]
        if "\x1b" in text:
            raise ValueError(f"an escape sequence is not known: {text!r}")
        if text:
            parts.append((column, text, style))
            column += len(text)
        if match:
            style, at = restyled(style, match.group(1)), match.end()
    return parts, style


def drawn(column: int, row: int, text: str, style: Style) -> str:
    """One run as elements of SVG."""
    x, y = MARGIN + column * CELL_WIDTH, TITLE_HEIGHT + MARGIN + row * LINE_HEIGHT
    color = FOREGROUND if style.color is None else COLORS[style.color]
    elements = []
    if style.reversed:
        width = len(text) * CELL_WIDTH
        elements.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LINE_HEIGHT}" fill="{color}"/>')
        color = BACKGROUND
    attributes = f' fill="{color}"' if color != FOREGROUND else ""
    attributes += ' font-weight="bold"' if style.bold else ""
    attributes += ' opacity="0.6"' if style.dim else ""
    # Viewers collapse spaces: what stands between wider gaps has a position of its own. The length keeps columns
    # aligned whatever font there is.
    for part in PART.finditer(text):
        length = f'textLength="{len(part.group()) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
        at = x + part.start() * CELL_WIDTH
        elements.append(f'<text x="{at:.1f}" y="{y + FONT_SIZE}" {length}{attributes}>{escape(part.group())}</text>')
    if style.underlined:
        end = x + len(text) * CELL_WIDTH
        line = f'M{x:.1f} {y + LINE_HEIGHT - 1.5}H{end:.1f}'
        elements.append(f'<path d="{line}" stroke="{color}" opacity="0.6"/>')
    return "".join(elements)


def picture(screen: str, title: str) -> str:
    """The screen as an SVG document. Empty lines at its end are left out."""
    lines = screen.rstrip("\n").split("\n")
    while len(lines) > 1 and not SEQUENCE.sub("", lines[-1]).strip():
        lines.pop()
    body, style, columns = [], Style(), 0
    for row, line in enumerate(lines):
        parts, style = runs(line, style)
        for column, text, looks in parts:
            columns = max(columns, column + len(text.rstrip()))
            body.append(drawn(column, row, text, looks))
    width = 2 * MARGIN + max(columns, 60) * CELL_WIDTH
    height = TITLE_HEIGHT + 2 * MARGIN + len(lines) * LINE_HEIGHT
    dots = "".join(
        f'<circle cx="{18 + 18 * index}" cy="15" r="5.5" fill="{COLORS[color]}"/>'
        for index, color in enumerate((1, 3, 2))
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<path d="M0 {TITLE_HEIGHT}V8a8 8 0 0 1 8-8H{width - 8:.0f}a8 8 0 0 1 8 8V{TITLE_HEIGHT}Z" fill="{FRAME}"/>',
        dots,
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace"'
        f' font-size="{FONT_SIZE}" fill="{FOREGROUND}">',
        f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" opacity="0.7">{escape(title)}</text>',
        *[element for element in body if element],
        "</g>",
        "</svg>",
        "",
    ])


def main() -> None:
    """Standard input in, standard output out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--title", default="driftq", help="what the frame says")
    arguments = parser.parse_args()
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(picture(sys.stdin.read(), arguments.title))


if __name__ == "__main__":
    main()

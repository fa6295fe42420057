"""Tables and how they are written: CSV for programs, Markdown, HTML and LaTeX for readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd

from dibs.files import atomic, check_suffix

NONE = "–"
"""Shown for a number that does not exist."""
LONG = 40  # rows; a longer LaTeX table breaks over pages
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table for readers."""

    header: str
    show: str | tuple[str, ...] | Callable[[Row], str]
    """Templates of a row, such as ("{mean:.2f}", " ± {std:.2f}"), or a function of it. The cell is a dash if a number
    in the first template does not exist; any other template then becomes `otherwise`."""
    align: str = "r"
    """l, r or c; for long text, the width in LaTeX, such as 5cm."""
    otherwise: str = ""

    def text(self, row: Row) -> str:
        """Return the cell of a row."""
        if callable(self.show):
            return self.show(row)
        first, *more = [self.show] if isinstance(self.show, str) else self.show
        lead = fill(first, row, NONE)
        return lead if lead == NONE else lead + "".join(fill(part, row, self.otherwise) for part in more)


def fill(template: str, row: Row, otherwise: str = "") -> str:
    """Fill in a template, unless one of its values does not exist."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    return otherwise if any(pd.isna(row.get(name)) for name in names) else template.format_map(row)


@dataclass(frozen=True)
class Table:
    """Numbers for programs and what readers see of them."""

    name: str
    caption: str
    rows: list[Row]
    columns: Sequence[Column]
    grouped: int = 0
    """Number of leading columns that show a value only where it changes."""
    notes: Sequence[str] = ()

    def text(self, escapes: Mapping[int, str] | None = None) -> pd.DataFrame:
        """Return the cells that readers see, with some characters escaped."""
        cells = [[column.text(row).translate(escapes or {}) for column in self.columns] for row in self.rows]
        frame = pd.DataFrame(cells, columns=[c.header.translate(escapes or {}) for c in self.columns], dtype=object)
        lead = frame.iloc[:, : self.grouped]
        repeated = (lead == lead.shift()).cumprod(axis=1).astype(bool)
        frame.iloc[:, : self.grouped] = lead.mask(repeated, "")
        return frame

    def without_empty(self) -> Table:
        """Leave out entries of rows, and columns for readers, that have no value anywhere."""
        used = [name for name in self.rows[0] if any(pd.notna(row[name]) for row in self.rows)]
        columns = [column for column in self.columns if any(column.text(row) != NONE for row in self.rows)]
        return replace(self, rows=[{name: row[name] for name in used} for row in self.rows], columns=columns)


def save(table: Table, output: str | Path) -> None:
    """Write a table in the format of the name's suffix; the same table gives the same bytes."""
    text = FORMATS[check_suffix(output, tuple(FORMATS))](table)
    with atomic(output) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def to_csv(table: Table) -> str:
    """Return all numbers; cells without a number are empty."""
    return str(pd.DataFrame(table.rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def to_markdown(table: Table) -> str:
    """Return a pipe table, the caption above and the notes below."""
    align = ["right" if column.align == "r" else "left" for column in table.columns]
    body = table.text({ord("|"): r"\|"}).to_markdown(index=False, colalign=align, disable_numparse=True)
    return "\n\n".join([f"**{table.caption}**", body, *table.notes]) + "\n"


def to_html(table: Table) -> str:
    """Return a table for a browser, also as a part of another page: the workflow's report opens with one."""
    right = [f"#{table.name} :is(td,th):nth-child({n + 1})" for n, c in enumerate(table.columns) if c.align == "r"]
    look = _HTML.replace("TABLE", f"#{table.name}") + (f"{', '.join(right)} {{ text-align: right }}\n" if right else "")
    body = table.text().to_html(index=False, border=0, table_id=table.name, classes=[])
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in table.notes)
    caption = f"<p><strong>{escape(table.caption)}</strong></p>"
    return f'<meta charset="utf-8">\n<style>\n{look}</style>\n<section>\n{caption}\n{body}\n{notes}</section>\n'


def to_latex(table: Table) -> str:
    """Return a booktabs table. A long one may break over pages, any other is scaled to the width of the text."""
    text = table.text(_TEX)
    long = len(text) > LONG
    body = text.to_latex(
        index=False,
        longtable=long,
        column_format="".join(c.align if c.align in "lrc" else f"p{{{c.align}}}" for c in table.columns),
        caption=tex(table.caption),
        label=f"tab:{table.name}",
        position=None if long else "t",
    )
    small = r"\scriptsize\setlength{\tabcolsep}{3pt}"
    notes = "".join(f"\\par {tex(note)}\n" for note in table.notes)
    if long:
        return f"% \\usepackage{{booktabs,longtable}}\n\\begingroup{small}\n{body}{notes}\\endgroup\n"
    body = body.replace(r"\begin{tabular}", small + "\n\\begin{adjustbox}{max width=\\linewidth}\n\\begin{tabular}")
    body = body.replace("\\end{tabular}\n", f"\\end{{tabular}}\n\\end{{adjustbox}}\n{notes}")
    return f"% \\usepackage{{booktabs,adjustbox}}\n{body}"


FORMATS: dict[str, Callable[[Table], str]] = {".csv": to_csv, ".md": to_markdown, ".html": to_html, ".tex": to_latex}

_HTML = """section:has(> TABLE) { font: 14px/1.4 system-ui, sans-serif; color: #222; padding: 0 1em; max-width: 100% }
TABLE { border-collapse: collapse; width: auto; font-variant-numeric: tabular-nums; margin: 1em 0 }
TABLE :is(td, th) { padding: 0.2em 0.7em; text-align: left; font-weight: normal; white-space: nowrap }
TABLE thead th { border-bottom: 1.5px solid #222; font-weight: 600 }
TABLE tbody tr:nth-child(even) { background: #f5f6f8 }
"""

_TEX = str.maketrans(
    {
        **{c: "\\" + c for c in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"±": r"$\pm$", "×": r"$\times$", "→": r"$\to$", "·": r"$\cdot$", "≥": r"$\ge$", "−": "$-$"},
        **{c: f"${c}$" for c in "|<>"},
        **{"–": "--", "…": r"\ldots{}", "“": "``", "”": "''"},
        **{"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$"},
        **{"κ": r"$\kappa$", "λ": r"$\lambda$", "τ": r"$\tau$"},
    }
)


def tex(text: str) -> str:
    """Escape plain text for LaTeX."""
    return text.translate(_TEX)


def span(counts: Iterable[int]) -> str:
    """Format the range of some counts, such as 3 or 1–10."""
    found = sorted(set(counts))
    return "–".join(map(str, dict.fromkeys(found[:1] + found[-1:])))

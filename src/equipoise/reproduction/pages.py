"""Sections -> Markdown and one self-contained HTML page."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from ..mechanism.claims import NO_EPSILON, PROVED
from .claims import RULE
from .sections import Section
from .tables import Table

FITTED = (
    "The paper does not state eta, T, S or the initialisation: they were chosen by fit to its tables, so agreement "
    "with those tables is partly by construction. The split of the images was changed once after results were seen."
)
CLAIMED = {
    "proved": f"that {PROVED}.",
    "measured": "everything on this page, on these seeds, against InvGrad alone.",
    "not claimed": f"{NO_EPSILON}; protection against other attacks: studies/leakage has stronger ones.",
}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table_text(table: Table) -> str:
    lines = [f"{table.caption}.", "", _row(table.head), _row(["---"] * len(table.head))]
    return "\n".join(lines + [_row(row) for row in table.rows])


def artefact_text(section: Section, command: str, origins: str, figure: bool) -> str:
    """The README of an artefact's folder."""
    about = section.artefact
    parts = [f"# {about.title}", f"**The paper's claim, in our words.** {about.claim}"]
    parts += [f"**How a cell is judged.** {about.rule}", f"**Result.** {section.verdict}"]
    parts += [f"**Again:** `{command}`. {origins}", FITTED]
    if figure:
        parts.append(f"![{about.title}](figure.svg)")
    parts += [table_text(table) for table in section.tables]
    parts += section.notes
    return "\n\n".join(parts) + "\n"


STATES = {"holds": "holds", "fails": "**fails**", "not shown": "*not shown*"}


def claims_table(claims: list[dict[str, Any]]) -> Table:
    rows = [[claim["claim"], STATES[claim["verdict"]], claim["evidence"]] for claim in claims]
    return Table(f"{RULE}; the figures behind each verdict", ["the paper's claim", "here", "figures"], rows)


def overview_table(sections: list[Section]) -> Table:
    rows = [[f"[{section.artefact.title}](#{section.artefact.name})", section.verdict] for section in sections]
    return Table("How many cells agree", ["artefact", "result"], rows)


QUICK = "QUICK: fewer rounds and seeds than the paper's protocol. Nothing here is a result."
BARS = (
    "Error bars in figures are standard deviations over seeds; the bands of the clients' curves reach from the lowest "
    "to the highest seed; intervals in tables are 95 % intervals."
)


def page_text(
    head: list[str], sections: list[Section], claims: list[dict[str, Any]], figures: dict[str, str], quick: bool = False
) -> str:
    """The results page as Markdown; it lies beside the artefacts' folders."""
    parts = ["# The paper, reproduced", *([f"**{QUICK}**"] if quick else []), *head, FITTED, BARS]
    parts += [f"- **{word}**: {what}" for word, what in CLAIMED.items()]
    parts += ["## Claims", table_text(claims_table(claims)), "## Artefacts"]
    parts.append(table_text(overview_table(sections)))
    for section in sections:
        about = section.artefact
        parts += [f'<a id="{about.name}"></a>', f"## {about.title}", about.claim]
        parts += [f"*{about.rule}*", f"**{section.verdict}** [All numbers]({about.name}/README.md)."]
        if about.name in figures:
            parts.append(f"![{about.title}]({about.name}/figure.svg)")
        parts += [table_text(table) for table in section.tables[:1]] + section.notes
    return "\n\n".join(parts) + "\n"


HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper, reproduced</title><style>
:root { color-scheme: light; --ink: #1c2321; --soft: #5b6663; --line: #dfe4e2; --good: #13795b; --bad: #b3261e; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); margin: 0 auto; padding: 1.5rem; max-width: 1080px; }
h1 { margin: 0 0 .3rem; } h2 { margin-top: 2.6rem; border-top: 1px solid var(--line); padding-top: 1.4rem; }
p.soft, .soft { color: var(--soft); } .quick { background: #fdecea; padding: .6rem 1rem; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin: .6rem 0 1rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .28rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
.open { color: var(--soft); font-style: italic; }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
details > summary { cursor: pointer; color: var(--soft); } .wide { overflow-x: auto; }
ul.plain { list-style: none; padding: 0; }
</style></head><body>
<h1>The paper, reproduced</h1>
"""

LINK = re.compile(r"\[([^\]]+)\]\((#[a-z-]+)\)")
WORDS = {"agrees": "good", "holds": "good", "**differs**": "bad", "**fails**": "bad", "*not shown*": "open"}


def page_html(
    head: list[str], sections: list[Section], claims: list[dict[str, Any]], figures: dict[str, str], quick: bool
) -> str:
    """The same as one HTML file that needs nothing else."""
    parts = [HEAD, *(f'<p class="soft">{escape(line)}</p>' for line in head)]
    parts += [f'<p class="quick">{escape(QUICK)}</p>'] if quick else []
    parts.append(f"<p>{escape(FITTED)} {escape(BARS)}</p>")
    claimed = "".join(f"<li><b>{escape(word)}</b>: {escape(what)}</li>" for word, what in CLAIMED.items())
    parts.append(f'<ul class="plain">{claimed}</ul>')
    parts.append(f'<h2 id="claims">Claims</h2>{_table_html(claims_table(claims))}')
    parts.append(f'<h2 id="artefacts">Artefacts</h2>{_table_html(overview_table(sections))}')
    parts += [_section_html(section, figures.get(section.artefact.name)) for section in sections]
    return "\n".join([*parts, "</body></html>", ""])


def _section_html(section: Section, figure: str | None) -> str:
    name, title, claim, rule, verdict = map(
        escape, (*(getattr(section.artefact, part) for part in ("name", "title", "claim", "rule")), section.verdict)
    )
    parts = [f'<section>\n<h2 id="{name}">{title}</h2>']
    parts.append(f'<p>{claim}</p><p class="soft">{rule}</p><p><b>{verdict}</b></p>')
    if figure is not None:
        parts.append(f'<figure role="img" aria-label="{title}">{_alone(name, figure)}</figure>')
    parts += [f"<p>{escape(note)}</p>" for note in section.notes]
    tables = "".join(map(_table_html, section.tables))
    return "\n".join([*parts, f"<details><summary>all numbers</summary>{tables}</details>\n</section>"])


def _table_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_cell_html(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead><tbody>\n'
        f"{rows}\n</tbody></table></div>"
    )


def _cell_html(cell: str) -> str:
    if cell in WORDS:
        return f'<span class="{WORDS[cell]}">{escape(cell.strip("*"))}</span>'
    link = LINK.fullmatch(cell)
    return f'<a href="{escape(link[2])}">{escape(link[1])}</a>' if link else escape(cell)


def _alone(name: str, svg: str) -> str:
    """An SVG that can stand in a page beside others: no prologue, and identifiers of its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="', f'id="{name}-', body)
    return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", body)

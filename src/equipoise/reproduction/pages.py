"""Sections -> Markdown and one self-contained HTML page."""

from __future__ import annotations

import re
from typing import Any

from ..mechanism.claims import NO_EPSILON, PROVED
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


def claims_table(claims: list[dict[str, Any]]) -> Table:
    rows = [[claim["claim"], "holds" if claim["holds"] else "**fails**", claim["evidence"]] for claim in claims]
    return Table("Every claim with the figures behind it", ["the paper's claim", "here", "figures"], rows)


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


TEMPLATE = """<!doctype html>
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
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
details > summary { cursor: pointer; color: var(--soft); } .wide { overflow-x: auto; }
ul.plain { list-style: none; padding: 0; }
</style></head><body>
<h1>The paper, reproduced</h1>
{% for line in head %}<p class="soft">{{ line }}</p>{% endfor %}
{% if quick %}<p class="quick">{{ quick_words }}</p>{% endif %}
<p>{{ fitted }} {{ bars }}</p>
<ul class="plain">{% for word, what in claimed.items() %}<li><b>{{ word }}</b>: {{ what }}</li>{% endfor %}</ul>
<h2 id="claims">Claims</h2>{{ table(claims) }}
<h2 id="artefacts">Artefacts</h2>{{ table(overview) }}
{% for s in sections %}<section>
<h2 id="{{ s.artefact.name }}">{{ s.artefact.title }}</h2>
<p>{{ s.artefact.claim }}</p><p class="soft">{{ s.artefact.rule }}</p><p><b>{{ s.verdict }}</b></p>
{% if s.artefact.name in figures %}
<figure role="img" aria-label="{{ s.artefact.title }}">{{ figures[s.artefact.name] | safe }}</figure>{% endif %}
{% for note in s.notes %}<p>{{ note }}</p>{% endfor %}
<details><summary>all numbers</summary>{% for t in s.tables %}{{ table(t) }}{% endfor %}</details>
</section>{% endfor %}
</body></html>
"""

TABLE = """<div class="wide"><table><caption>{{ t.caption }}</caption>
<thead><tr>{% for cell in t.head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in t.rows %}<tr>{% for cell in row %}<td>{{ mark(cell) }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>"""

LINK = re.compile(r"\[([^\]]+)\]\((#[a-z-]+)\)")
WORDS = {"agrees": "good", "holds": "good", "**differs**": "bad", "**fails**": "bad"}


def page_html(
    head: list[str], sections: list[Section], claims: list[dict[str, Any]], figures: dict[str, str], quick: bool
) -> str:
    """The same as one HTML file that needs nothing else."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    rooms = Environment(autoescape=True)
    inner = rooms.from_string(TABLE)

    def mark(cell: str) -> Any:
        if cell in WORDS:
            return Markup('<span class="{}">{}</span>').format(WORDS[cell], cell.strip("*"))
        link = LINK.fullmatch(cell)
        return Markup('<a href="{}">{}</a>').format(link[2], link[1]) if link else escape(cell)

    def table(value: Table) -> Any:
        return Markup(inner.render(t=value, mark=mark))

    return rooms.from_string(TEMPLATE).render(
        head=head, sections=sections, claims=claims_table(claims), overview=overview_table(sections),
        figures={name: _alone(name, svg) for name, svg in figures.items()}, quick=quick, fitted=FITTED, claimed=CLAIMED,
        bars=BARS, quick_words=QUICK,
        table=table,
    )  # fmt: skip


def _alone(name: str, svg: str) -> str:
    """An SVG that can stand in a page beside others: no prologue, and identifiers of its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="', f'id="{name}-', body)
    return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", body)

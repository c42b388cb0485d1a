"""Say which committed results are older than what they were made from.

    python scripts/stale.py                                   # exits with 1 where one is stale
    python scripts/stale.py --mark NAME [--commit COMMIT] [--machine MACHINE]      # NAME was made again
    python scripts/stale.py --mark NAME --verified HOW        # NAME was not made again: it was found to be the same

``results.toml`` has a table for each result: its files, the command that makes it, commit and machine, and its sources,
each with a digest of what it *means*. What does not change a digest:

===================================  ===============================================================================
Python (``FILE.py``, or one name of  comments, docstrings, format, names of local variables, order and modules of
it: ``FILE.py#NAME``)                imports, the place of the file (the digest is looked for in the whole tree)
JSON, TOML                           format and order of keys, the place of the file
``values.json.gz#SCENARIO``          anything but the golden values of that scenario: code may change while they stay
===================================  ===============================================================================

A renamed function counts as a change of the files that name it: who renames one looks, and marks with ``--verified``.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
MANIFEST = "results.toml"
HEADER = """\
# Every committed result: how it was made, and digests of its files and of what it rests on. `make stale` compares them,
# `python scripts/stale.py --mark NAME` writes them (the whole file: comments are not kept). A source is a file, a name
# in one (FILE#NAME) or a scenario of the golden values. To add one, write it with the digest "" and mark the result.
"""
PUBLISHED = (
    "benchmarks/results_*.json", "reproduction/**/*.json", "reproduction/**/*.svg", "reproduction/**/*.html",
    "studies/**/*.json", "studies/**/*.svg", "studies/**/*.npz", "frontier/*.json", "frontier/*.svg", "frontier/*.npz",
)  # fmt: skip
"""What needs an entry, unless it is a source of one."""
CODE = ("src", "scripts", "benchmarks", "examples", "studies")
"""Where a source that was moved is looked for."""

SILENT = ("ctx", "kind", "type_comment")
"""Fields of syntax trees that repeat what others say, or say nothing."""

NONE: Mapping[str, str] = MappingProxyType({})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)
LIKE_A_REPR = re.compile(r"b['\"].*|Ellipsis|[-+\d.e()]+j\)?", re.DOTALL)
"""Strings that look like what another constant is written as."""

Entry = dict[str, Any]


# -- what a file means ---------------------------------------------------------------------------------------------


def digest(name: str, content: bytes) -> str | None:
    """Of the meaning of a file, or of the part of it that ``FILE#PART`` names; None where it has no such part."""
    path, _, part = name.partition("#")
    return _digest(Path(path).suffix, part, content)


@cache
def _digest(kind: str, part: str, content: bytes) -> str | None:
    value: Any
    if kind == ".py":
        value = code(ast.parse(content), part)
    elif kind == ".gz":
        value = list(json.loads(gzip.decompress(content))["scenarios"].get(part, {}).values())
    elif kind in (".json", ".toml"):
        value = json.loads(content) if kind == ".json" else tomllib.loads(content.decode())
    else:
        value = hashlib.sha256(content).hexdigest()
    if part and not value:
        return None
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def code(tree: ast.Module, part: str) -> Any:
    """A syntax tree as lists, without what does not matter; of the whole file with what it imports, from any module."""
    if part:
        return [plain(node) for node in tree.body if part in names(node)]
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            own = module.partition(".")[0] == "equipoise" or (isinstance(node, ast.ImportFrom) and node.level > 0)
            imported |= {("equipoise" if own else module, a.name, a.asname or "") for a in node.names}
    return [sorted(imported - {("__future__", "annotations", "")}), plain(tree.body)]


def names(node: ast.stmt) -> set[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def plain(node: Any, local: Mapping[str, str] = NONE, known: Mapping[str, str] = NONE) -> Any:
    """Not ``ast.dump``, which differs between versions of Python. ``local``: what the scopes around assign, of what
    is ``known`` of the outermost function.
    """
    if isinstance(node, list):
        return [plain(item, local, known) for item in node if not silent(item)]
    if isinstance(node, ast.Name):
        return ["Name", local.get(node.id, node.id)]
    if isinstance(node, ast.AST):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LIKE_A_REPR.fullmatch(node.value):
            return ["Constant", {"text": node.value}]
        known = known or variables(node)
        local = {**local, **{name: known[name] for name in assigned(node) if name in known}}
        fields = {
            name: value for name, value in ast.iter_fields(node) if name not in SILENT and value not in (None, [])
        }
        return [type(node).__name__, {name: plain(value, local, known) for name, value in fields.items()}]
    return node if isinstance(node, str | int | float) else repr(node)


def variables(node: ast.AST) -> dict[str, str]:
    """Other names for what a function assigns, by order; parameters, and what is declared global, keep theirs."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    parts = list(ast.walk(node))
    kept = {name for part in parts if isinstance(part, ast.Global) for name in part.names}
    kept |= {part.arg for part in parts if isinstance(part, ast.arg)}
    stored = [part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    return {name: f"variable {i}" for i, name in enumerate(dict.fromkeys(stored)) if name not in kept}


def assigned(node: ast.AST) -> set[str]:
    """What a scope assigns itself, not one inside of it: its statements, or the loops of a comprehension."""
    if not isinstance(node, SCOPES):
        return set()
    found, waiting = set(), list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        if isinstance(part, COMPREHENSIONS):  # what := assigns in it belongs to the scope around
            walruses = (item.target for item in ast.walk(part) if isinstance(item, ast.NamedExpr))
            found |= {target.id for target in walruses if isinstance(target, ast.Name)}
        elif not isinstance(part, SCOPES):
            waiting += ast.iter_child_nodes(part)
    return found


def silent(node: Any) -> bool:
    """Imports, which ``code`` takes by themselves, and docstrings."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


# -- what has changed ----------------------------------------------------------------------------------------------


def place(root: Path, name: str, wanted: str) -> str | None:
    """The name of the source with this digest: its own, or that of the place it was moved to."""
    path, mark, part = name.partition("#")
    kind = Path(path).suffix
    if (root / path).is_file():
        found = digest(name, (root / path).read_bytes())
        if found is not None:  # a copy elsewhere does not stand for what is still here
            return name if found == wanted else None
    moved = (file for folder in CODE for file in sorted((root / folder).rglob(f"*{kind}")))
    for file in moved if kind in (".py", ".json", ".toml") else ():
        if file.is_file() and digest(name, file.read_bytes()) == wanted:
            return f"{file.relative_to(root).as_posix()}{mark}{part}"
    return None


def changes(root: Path, entry: Entry) -> Iterator[str]:
    """Why a result is stale, a sentence each."""
    if "stale" in entry:
        yield entry["stale"]
    if "held_by" in entry:
        file, _, test = entry["held_by"].partition("::")
        if not (root / file).is_file() or test not in tests((root / file).read_bytes()):
            yield f"{entry['held_by']}, which makes it again and compares, is gone."
        yield from (f"No file is called {pattern}." for pattern in entry["patterns"] if not any(root.glob(pattern)))
    for name, wanted in entry.get("files", {}).items():
        if not (root / name).is_file():
            yield f"{name} is missing."
        elif digest(name, (root / name).read_bytes()) != wanted:
            yield f"{name} is not the file that was marked{changed_in(root, name, wanted)}."
    for name, wanted in entry.get("sources", {}).items():
        if place(root, name, wanted) is None:
            word = "has changed" if (root / name.partition("#")[0]).is_file() else "is gone"
            yield f"{name} {word}{changed_in(root, name, wanted)}."


def tests(content: bytes) -> set[str]:
    """The tests that a file defines."""
    functions = (node for node in ast.parse(content).body if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test")}


def changed_in(root: Path, name: str, wanted: str) -> str:
    """The commit that changed a file first after it had this digest, as far as there is a history to ask."""
    if not wanted:
        return ": it has no digest yet"
    path = name.partition("#")[0]
    later = ", not committed yet"
    for line in (git(root, "log", "-n", "100", "--format=%h %s", "--", path) or b"").decode().splitlines():
        content = git(root, "show", f"{line.split()[0]}:./{path}")
        if content is not None and digest(name, content) == wanted:
            return later
        later = f", in {line}"
    return ""


def git(root: Path, *arguments: str) -> bytes | None:
    """What git prints; None without git, without a repository, or where it fails."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def unlisted(root: Path, entries: dict[str, Entry]) -> list[str]:
    """Published files that belong to no result."""
    known: set[str] = set()
    for entry in entries.values():
        known |= {name.partition("#")[0] for part in ("files", "sources") for name in entry.get(part, ())}
        known |= matching(root, entry.get("patterns", ()))
    return sorted(matching(root, PUBLISHED) - known)


def matching(root: Path, patterns: Sequence[str]) -> set[str]:
    return {path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)}


# -- the list, and the mark ----------------------------------------------------------------------------------------


def read(root: Path) -> dict[str, Entry]:
    return tomllib.loads((root / MANIFEST).read_text(encoding="utf-8"))


def report(root: Path) -> tuple[list[str], int]:
    """Sentences for people, and how many results are stale or unknown."""
    entries = read(root)
    reasons = {name: list(changes(root, entry)) for name, entry in entries.items()}
    lines = [line for name, entry in entries.items() if not reasons[name] for line in fresh(name, entry)]
    for name, why in reasons.items():
        if why:
            pages, command = entries[name]["pages"], entries[name]["command"]
            lines += [f"{name} is stale. It is shown in {', '.join(pages)}.", *(f"  - {reason}" for reason in why)]
            lines.append(f"  Make it again: {command}")
            lines += [] if "held_by" in entries[name] else [f"  Then: python scripts/stale.py --mark {name}"]
    unknown = unlisted(root, entries)
    lines += [f"{name} belongs to no result. Add it to {MANIFEST}." for name in unknown]
    count = sum(map(bool, reasons.values())) + len(unknown)
    return [*lines, f"{len(entries)} results. Stale or unknown: {count}."], count


def fresh(name: str, entry: Entry) -> list[str]:
    if "held_by" in entry:
        return [f"{name} is fresh: {entry['held_by']} makes it again and compares."]
    result = [f"{name} is fresh: made at {entry['commit']}, {entry['machine']}."]
    return result + ([f"  Not made again since. {entry['verified']}"] if "verified" in entry else [])


def mark(root: Path, name: str, commit: str | None, machine: str | None, verified: str | None) -> None:
    """Write that a result is what its sources give today: it was made again, or was verified."""
    entries = read(root)
    if name not in entries or "held_by" in entries[name]:
        known = ", ".join(one for one, entry in entries.items() if "held_by" not in entry)
        raise SystemExit(f"{MANIFEST} has no result {name!r} to mark. It has {known}.")
    entry = entries[name]
    sources = [place(root, source, wanted) or source for source, wanted in entry["sources"].items()]
    entry["files"] = {item: present(root, item) for item in entry["files"]}
    entry["sources"] = {item: present(root, item) for item in sources}
    if verified is None:
        commit = commit or (git(root, "rev-parse", "--short", "HEAD") or b"").decode().strip()
        check_commit(root, commit, entry["sources"])
    for key, value in (("commit", commit), ("machine", machine)):
        entry[key] = value or entry[key]
    entry.pop("stale", None)
    entry.pop("verified", None)
    entry.update({"verified": verified} if verified else {})
    (root / MANIFEST).write_text(written(entries), encoding="utf-8")


def check_commit(root: Path, commit: str, sources: dict[str, str]) -> None:
    """Refuse a commit whose files are not today's. Golden values may have been recorded after a result was made."""
    if not commit:
        raise SystemExit("There is no git to ask for the commit that it was made at. Give it: --commit COMMIT.")
    known = (
        git(root, "rev-parse", "--git-dir") is None or git(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None
    )
    if not known:
        raise SystemExit(f"There is no commit {commit}. Give one that holds the files as they are.")
    for source, wanted in sources.items():
        path = source.partition("#")[0]
        content = git(root, "show", f"{commit}:./{path}")
        if content is not None and not path.endswith(".gz") and digest(source, content) != wanted:
            raise SystemExit(
                f"{source} is not what it was at {commit}. Commit it before the result is made, or say with --verified "
                "why the result is the same."
            )


def present(root: Path, name: str) -> str:
    path = root / name.partition("#")[0]
    result = digest(name, path.read_bytes()) if path.is_file() else None
    if result is None:
        raise SystemExit(f"{name} is gone. Name what took its place in {MANIFEST}, then mark again.")
    return result


def written(entries: dict[str, Entry]) -> str:
    """The manifest as TOML; a string of JSON is one of TOML too."""

    def string(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    lines = [HEADER]
    for name, entry in entries.items():
        lines.append(f"[{string(name)}]")
        lines += [f"{key} = {string(value)}" for key, value in entry.items() if not isinstance(value, dict)]
        for key, table in entry.items():
            if isinstance(table, dict):
                lines += [
                    f"[{string(name)}.{key}]",
                    *(f"{string(item)} = {string(value)}" for item, value in table.items()),
                ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Say which committed results are older than what they were made from.")
    parser.add_argument("--mark", metavar="NAME", help="this result is what its sources give today")
    parser.add_argument("--commit", help="that it was made at; the present one unless said")
    parser.add_argument("--machine", help="that it was made on; the one before unless said")
    parser.add_argument("--verified", metavar="HOW", help="it was not made again, but found to be the same: how")
    chosen = parser.parse_args(arguments)
    if chosen.mark:
        mark(root, chosen.mark, chosen.commit, chosen.machine, chosen.verified)
        return 0
    lines, count = report(root)
    print("\n".join(lines))
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

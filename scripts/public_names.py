"""The index of public names, docs/reference/api.md: signature, description and one example of each, by docstrings."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import inspect
import re
import textwrap
from dataclasses import MISSING
from typing import Any

GENERATED = "*Written by `scripts/reference.py` from the code; edit that, not this page.*"
PACKAGES = ("equipoise", "equipoise.flower", "equipoise.reproduction")
FROM_TORCH = {"torch": "import torch", "nn": "from torch import nn"}


_ASKED = """
>>> from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
>>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
>>> batch = torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
>>> content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "config": ConfigRecord({"server-round": 1})})
>>> msg = Message(content, dst_node_id=1, message_type="train")
>>> run = {"equipoise.mechanism": "pl-identical", "equipoise.budget": 0.98}
>>> from pathlib import Path
>>> from tempfile import mkdtemp
>>> from equipoise.flower import init_policy
>>> policy = init_policy(Path(mkdtemp()) / "node", "scans", "pl-identical", 0.98)  # what may leave this node
>>> node = {"equipoise.policy": str(policy)}
>>> context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run)
"""
FLOWER = {
    name: _ASKED + f">>> list({name}(model, batch, msg, context))\n['1.weight', '1.bias']\n"
    for name in ("protect", "protected_step")
} | {
    "guard": """
>>> from flwr.clientapp import ClientApp
>>> app = ClientApp(mods=[guard])
""",
    "Validated": """
>>> from flwr.serverapp.strategy import FedAvg
>>> strategy = Validated(FedAvg(), {"equipoise.mechanism": "pl-identical", "equipoise.budget": 0.98})
>>> strategy.terms.budget
0.98
""",
}
"""Examples with Flower's own objects, too long for a docstring, which shows a train function instead."""


def api_page() -> str:
    parts = [
        "# Public names",
        GENERATED,
        "Everything that other code may import, by package. What is not here is private and may change without notice. "
        "Every example is run by a test; those of `equipoise.flower` in a client app, where Flower sets its ids.",
    ]
    for package in PACKAGES:
        names = importlib.import_module(package).__all__
        rows = [[f"[`{name}`](#{anchor(package, name)})", first_line(public(package, name))] for name in names]
        parts += [f"## {package}", table(["name", "what it is"], rows)]
        parts += [section(package, name) for name in names]
    return "\n\n".join(parts)


def anchor(package: str, name: str) -> str:
    """The target of a link to a heading, as GitHub makes it: a name that differs in case alone gets a number."""
    before = [one for one in importlib.import_module(package).__all__ if one < name and one.lower() == name.lower()]
    return heading(package, name).lower().replace(".", "") + (f"-{len(before)}" if before else "")


def heading(package: str, name: str) -> str:
    """Names of sub-packages are written out where the package itself has the same name."""
    return name if package == "equipoise" else f"{package.partition('.')[2]}.{name}"


def public(package: str, name: str) -> Any:
    return getattr(importlib.import_module(package), name)


def section(package: str, name: str) -> str:
    value = public(package, name)
    doc = re.split(r"\n\n(?=>>>|={4,}|In a train function::)", inspect.cleandoc(value.__doc__ or ""))[0]
    prose = "\n\n".join(described(part) for part in doc.split("\n\n")).replace("``", "`")
    return "\n\n".join(
        part
        for part in (
            f"### {heading(package, name)}",
            f"```python\n{signature(name, value)}\n```",
            prose,
            example(package, name),
        )
        if part
    )


def described(part: str) -> str:
    """A paragraph of a docstring; its Args and Returns as a list."""
    title, _, rest = part.partition("\n")
    if not re.fullmatch(r"[A-Z][\w ]*:", title) or not rest.startswith("    "):
        return part
    lines = re.sub(r"\n {8,}", " ", rest).splitlines()
    if title != "Args:":
        return textwrap.fill(f"{title} " + " ".join(line.strip() for line in lines), 118, break_on_hyphens=False)
    return f"{title}\n\n" + "\n".join(re.sub(r"^ +([\w*]+): ", r"- `\1`: ", line) for line in lines)


def first_line(value: Any) -> str:
    doc = inspect.cleandoc(value.__doc__ or "")
    return " ".join(doc.split("\n\n")[0].split()) if doc else ""


def signature(name: str, value: Any) -> str:
    if not callable(value):
        return name
    parts, starred = [], False
    for part in inspect.signature(value).parameters.values():
        if part.kind is part.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = {part.VAR_POSITIONAL: "*", part.VAR_KEYWORD: "**"}.get(part.kind, "")
        starred |= stars == "*"
        kind = "" if part.annotation is part.empty else f": {annotation(part.annotation)}"
        parts.append(f"{stars}{part.name}{kind}{default(part.default)}")
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= 110 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def annotation(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return f" = {value!r}" if plain and value is not MISSING else " = ..."


def example(package: str, name: str) -> str:
    """The example of a docstring, with the imports that a reader needs."""
    value = public(package, name)
    docs = [value.__doc__, *(member.__doc__ for member in members(value))]
    docs += [FLOWER[name]] if package == "equipoise.flower" and name in FLOWER else []
    found = next((examples for doc in docs if doc and (examples := doctest.DocTestParser().get_examples(doc))), None)
    if found is None:
        return ""
    kept = [one for one in found if not re.match(r"from equipoise[.\w]* import |import torch$", one.source.strip())]
    lines = [f">>> {line}" for line in imports(package, name, "".join(one.source for one in kept))]
    for one in kept:
        first, *rest = one.source.rstrip("\n").split("\n")
        lines += [f">>> {first}", *(f"... {line}".rstrip() for line in rest)]
        lines += [one.want.rstrip("\n")] if one.want else []
    return "```pycon\n" + "\n".join(lines) + "\n```"


def members(value: Any) -> list[Any]:
    """The public methods and properties of a class, in their order."""
    if not inspect.isclass(value):
        return []
    own = [member for name, member in vars(value).items() if not name.startswith("_")]
    plain = [getattr(member, "__func__", getattr(member, "fget", member)) for member in own]
    return [member for member in plain if inspect.isfunction(member)]


def imports(package: str, name: str, source: str) -> list[str]:
    """Imports of all that an example uses and does not make itself; nothing private may be among it."""
    tree = ast.parse(source)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | set(dir(builtins))
    made |= {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ExceptHandler) and node.name
    }
    used = {node.id for node in names} - made
    result = [FROM_TORCH[one] for one in FROM_TORCH if one in used]
    used -= set(FROM_TORCH)
    for where in dict.fromkeys((package, *PACKAGES)):
        here = sorted(used & set(importlib.import_module(where).__all__))
        result += [f"from {where} import {', '.join(here)}"] if here else []
        used -= set(here)
    if used:
        raise AssertionError(f"The example of {package}.{name} uses {', '.join(sorted(used))}: not public.")
    return result


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("``", "`") for cell in cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(*head), "|" + "---|" * len(head), *(row(*cells) for cells in rows)])

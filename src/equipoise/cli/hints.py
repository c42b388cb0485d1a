"""What is said to an option that a command lacks: the library that parses suggests any name of a similar length."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

MEANT = {
    ("train", "--epsilon"): "The epsilon of gaussian-dp is its budget: --mechanism gaussian-dp --budget 2.",
    ("calibrate", "--epsilon"): "The epsilon of gaussian-dp is its budget: --mechanism gaussian-dp --budget 2.",
    ("train", "--delta"): "The delta of gaussian-dp is a setting: --set gaussian.delta=DELTA.",
    ("guarantee", "--mechanism"): "A guarantee of a whole run is that of gaussian-dp, and of no other.",
    ("guarantee", "--budget"): "The budget of gaussian-dp is its --epsilon.",
}
"""What somebody means by an option that a command lacks."""


class Hinting(TyperCommand):
    """A command that knows what some of the options mean that it lacks."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of click, which is no dependency of ours: it has the option's name
            name = getattr(error, "option_name", "")
            if words := MEANT.get((str(self.name), name)):
                vars(error).update(message=f"No such option: {name}. {words}", possibilities=None)
            raise

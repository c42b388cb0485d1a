"""What is said to an option that a command lacks: the library that parses suggests any name of a similar length."""

from __future__ import annotations

import click
from typer.core import TyperCommand

MEANT = {
    ("train", "--epsilon"): "The epsilon of gaussian-dp is its budget: --mechanism gaussian-dp --budget 2.",
    ("calibrate", "--epsilon"): "The epsilon of gaussian-dp is its budget: --mechanism gaussian-dp --budget 2.",
    ("train", "--delta"): "The delta of gaussian-dp is a setting: --set gaussian.delta=1e-6.",
    ("guarantee", "--mechanism"): "A guarantee of a whole run is that of gaussian-dp, and of no other.",
    ("guarantee", "--budget"): "The budget of gaussian-dp is its --epsilon.",
}
"""What somebody means by an option that a command lacks."""


class Hinting(TyperCommand):
    """A command that knows what some of the options mean that it lacks."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if words := MEANT.get((str(self.name), error.option_name)):
                raise click.UsageError(f"No such option: {error.option_name}. {words}", ctx) from error
            raise

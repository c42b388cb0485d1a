"""Parts of the sentences of a verdict."""

from __future__ import annotations

from equipoise.auditing.phrases import all_of, aside, first_of, guess_name, largest_of, lowered


def test_lists_read_as_people_say_them() -> None:
    assert [all_of(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_a_long_list_says_how_many_more_there_are() -> None:
    assert first_of(["a", "b", "c", "d"]) == "a, b, c, d"
    assert first_of(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"


def test_what_there_is_nothing_of_is_not_said() -> None:
    assert (aside([]), largest_of(()), largest_of((1, 1))) == ("", [], [])
    assert aside(["x", "y"]) == " (x; y)"


def test_a_figure_that_was_chosen_says_among_how_many() -> None:
    assert largest_of((6, 3, 4)) == ["the largest of 3 to 6 figures"]


def test_guesses_have_names_and_a_sentence_can_go_on_in_small_letters() -> None:
    assert guess_name("column_mean") == "the mean of every column"
    assert lowered("The server") == "the server"

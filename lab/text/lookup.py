"""Lookups in a few lines, which a model of 0.1B parameters can answer after two examples.

A value is copied, one of four colours is chosen by its letter, or a statement is right or wrong.
Most are copies: SmolLM2-135M answers these, and the other kinds hardly better than by guessing.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.text.dialogue import Exchange, Message
from lab.text.dice import Dice, Split
from lab.text.shop import Product, draw_product, money
from lab.text.system import SystemPrompt
from lab.text.words import COLOURS

FACTS: tuple[tuple[str, Callable[[Product], str]], ...] = (
    ("code", lambda product: product.code),
    ("colour", lambda product: product.colour),
    ("price", lambda product: money(product.price_cents)),
    ("stock", lambda product: str(product.stock)),
)
LETTERS = "ABCD"
EXAMPLES = 2

Question = tuple[str, str]
"""A question and its answer."""


def lookup(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A question whose answer stands in its own text, after two examples of the same kind."""
    make, chance = dice.weighted(KINDS)
    *examples, (question, answer) = [
        make(dice, draw_product(dice, split)) for _ in range(EXAMPLES + 1)
    ]
    lead = [
        message
        for asked, said in examples
        for message in (
            Message(role="user", content=asked),
            Message(role="assistant", content=said),
        )
    ]
    return Exchange(
        task="lookup",
        user=question,
        reply=answer,
        scorer="exact",
        expected=answer,
        lead=tuple(lead),
        chance=chance,
    )


def _copied(dice: Dice, product: Product) -> Question:
    name, read = dice.pick(FACTS)
    return f"{product.name}\n{name}: {read(product)}\n\nWhat is the {name}?", read(product)


def _chosen(dice: Dice, product: Product) -> Question:
    others = [colour for colour in COLOURS if colour != product.colour]
    colours = dice.shuffled([product.colour, *dice.sample(others, len(LETTERS) - 1)])
    options = [f"{letter}. {each}" for letter, each in zip(LETTERS, colours, strict=True)]
    question = f"The {product.name} is {product.colour}. Which colour is it?"
    return "\n".join([question, *options]), LETTERS[colours.index(product.colour)]


def _judged(dice: Dice, product: Product) -> Question:
    is_right = dice.chance(0.5)
    others = [colour for colour in COLOURS if colour != product.colour]
    colour = product.colour if is_right else dice.pick(others)
    question = f"The {product.name} is {product.colour}. Is it {colour}?"
    return question, "yes" if is_right else "no"


KINDS: tuple[tuple[tuple[Callable[[Dice, Product], Question], float], float], ...] = (
    ((_copied, 0.0), 4.0),
    ((_chosen, 1 / len(LETTERS)), 1.0),
    ((_judged, 0.5), 1.0),
)
"""What makes a question, the probability that a guess is right, and the weight of its kind."""

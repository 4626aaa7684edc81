"""Arithmetic: single sums, chains of sums, and order totals worked line by line."""

from __future__ import annotations

from lab.text.dialogue import Exchange
from lab.text.dice import Dice, Split, owned
from lab.text.shop import draw_price, draw_product, money
from lab.text.system import SystemPrompt

PLUS = ("What is {a} + {b}?", "Add {a} and {b}.", "{a} plus {b}?", "Sum up {a} and {b}.")
MINUS = ("What is {a} - {b}?", "Subtract {b} from {a}.", "{a} minus {b}?", "Take {b} from {a}.")
TIMES = ("What is {a} x {b}?", "Multiply {b} by {a}.", "{a} times {b}?", "How much is {a} x {b}?")
CHAINS = ("Work out {c}.", "Compute {c} step by step.", "What is {c}?", "Please calculate {c}.")
TOTALS = (
    "What is the total of {lines}?",
    "Add up this order: {lines}.",
    "A customer buys {lines}. What is the total?",
    "Please total the order: {lines}.",
)
DISCOUNTS = (" A credit of {d} EUR is taken off.", " Subtract a credit of {d} EUR.")
SHIPPING = (" Shipping is {d} EUR.", " Add {d} EUR for shipping.")


def arithmetic(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A sum whose ``expected`` is the last number of the reply."""
    style = dice.weighted((("pair", 0.3), ("times", 0.15), ("chain", 0.2), ("order", 0.35)))
    if style == "pair":
        return _pair(dice, split)
    if style == "times":
        return _times(dice, split)
    if style == "chain":
        return _chain(dice, split)
    return _order(dice, split, system)


def _pair(dice: Dice, split: Split) -> Exchange:
    def operands() -> tuple[int, int]:
        return _number(dice, dice.between(3, 8)), _number(dice, dice.between(3, 8))

    first, second = owned(split, operands, lambda pair: f"{pair[0]}&{pair[1]}")
    if dice.chance(0.5):
        return _exchange(dice.pick(PLUS).format(a=first, b=second), str(first + second))
    high, low = max(first, second), min(first, second)
    return _exchange(dice.pick(MINUS).format(a=high, b=low), str(high - low))


def _times(dice: Dice, split: Split) -> Exchange:
    def operands() -> tuple[int, int]:
        return dice.between(2, 19), _number(dice, dice.between(2, 5))

    first, second = owned(split, operands, lambda pair: f"{pair[0]}x{pair[1]}")
    return _exchange(dice.pick(TIMES).format(a=first, b=second), str(first * second))


def _chain(dice: Dice, split: Split) -> Exchange:
    """Three to six numbers; the reply keeps a running value."""
    running = owned(
        split, lambda: _number(dice, dice.between(2, 4)), lambda number: f"chain {number}"
    )
    text, steps = str(running), []
    for _ in range(dice.between(2, 5)):
        number = _number(dice, dice.between(2, 4))
        sign = "-" if number <= running and dice.chance(0.5) else "+"
        after = running - number if sign == "-" else running + number
        text += f" {sign} {number}"
        steps.append(f"{running} {sign} {number} = {after}")
        running = after
    reply = "; ".join(steps) + f". Result: {running}"
    return _exchange(dice.pick(CHAINS).format(c=text), reply, str(running))


def _order(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """Two to five order lines with quantities; at times prices must come from the catalogue."""
    count = dice.between(2, 5)
    if len(system.catalogue) >= count and dice.chance(0.4):
        products = dice.sample(system.catalogue, count)
        lines = [(dice.between(1, 12), product.price_cents) for product in products]
        spelled = [
            f"{qty} x {product.name}" for (qty, _), product in zip(lines, products, strict=True)
        ]
    else:
        lines = [_line(dice, split) for _ in range(count)]
        spelled = [
            f"{qty} x {draw_product(dice, split).name} at {money(cents)}" for qty, cents in lines
        ]
    question = dice.pick(TOTALS).format(lines=", ".join(spelled))
    steps, totals = [], []
    for qty, cents in lines:
        steps.append(f"{qty} x {money(cents)} = {money(qty * cents)}")
        totals.append(qty * cents)
    running = totals[0]
    for total in totals[1:]:
        steps.append(f"{money(running)} + {money(total)} = {money(running + total)}")
        running += total
    extra = dice.below(4)
    if extra < 2:
        amount = dice.between(100, 999)
        sign = "-" if extra == 0 and amount < running else "+"
        question += dice.pick(DISCOUNTS if sign == "-" else SHIPPING).format(d=money(amount))
        after = running - amount if sign == "-" else running + amount
        steps.append(f"{money(running)} {sign} {money(amount)} = {money(after)}")
        running = after
    return _exchange(question, "; ".join(steps) + f". Total: {money(running)}", money(running))


def _line(dice: Dice, split: Split) -> tuple[int, int]:
    return owned(
        split, lambda: (dice.between(1, 12), draw_price(dice)), lambda pair: f"{pair[0]}x{pair[1]}"
    )


def _number(dice: Dice, digits: int) -> int:
    """A number of so many digits, without a leading zero."""
    return int(dice.between(10 ** (digits - 1), 10**digits - 1))


def _exchange(question: str, reply: str, expected: str | None = None) -> Exchange:
    return Exchange(
        task="arithmetic",
        user=question,
        reply=reply,
        scorer="number",
        expected=reply if expected is None else expected,
    )

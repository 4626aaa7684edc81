"""Multi-turn orders: the customer corrects the order, and the last word counts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lab.text.dialogue import Exchange, Message
from lab.text.dice import Dice, Split
from lab.text.system import SystemPrompt
from lab.text.tickets import Item, draw_items, spell_item, spell_items

STARTS = ("I would like {i}.", "Please note my order: {i}.", "Can I order {i}?", "We need {i}.")
NOTED = ("Noted: {i}.", "I have put down {i}.", "Your order: {i}.")
UPDATED = ("Changed. Now {i}.", "Done, the order is now {i}.", "Updated: {i}.")
CHANGES = (
    "Make it {n} of the {p}, please.",
    "Sorry, I meant {n} for the {p}.",
    "The number of {p}s should be {n}.",
)
DROPS = ("Leave out the {p}.", "I do not want the {p} after all.", "Please remove the {p}.")
ADDS = ("Also add {i}.", "And {i} as well.", "Put {i} on top.")
FINALS = (
    "Return the final order as JSON.",
    "Now the order as JSON, please.",
    "Final order as JSON.",
)


def correction(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """An order, one to three corrections, then the request for the final order as JSON."""
    items = list(draw_items(dice, split, system, dice.between(2, 3)))
    lead = [
        Message(role="user", content=dice.pick(STARTS).format(i=spell_items(dice, items))),
        Message(role="assistant", content=dice.pick(NOTED).format(i=_listed(items))),
    ]
    for _ in range(dice.between(1, 3)):
        request = _change(dice, split, system, items)
        lead.append(Message(role="user", content=request))
        lead.append(Message(role="assistant", content=dice.pick(UPDATED).format(i=_listed(items))))
    text = json.dumps({"items": [{"product": item.product, "qty": item.qty} for item in items]})
    return Exchange(
        task="correction",
        user=dice.pick(FINALS),
        reply=text,
        scorer="json_exact",
        expected=text,
        lead=tuple(lead),
    )


def _change(dice: Dice, split: Split, system: SystemPrompt, items: list[Item]) -> str:
    """Apply one correction to ``items`` in place and return its wording."""
    kind = dice.weighted((("change", 0.5), ("drop", 0.25), ("add", 0.25)))
    index = dice.below(len(items))
    old = items[index]
    if kind == "drop" and len(items) > 1:
        del items[index]
        return dice.pick(DROPS).format(p=old.product)
    if kind == "add" and len(items) < 5:
        names = {item.product for item in items}
        new = next(
            item
            for item in draw_items(dice, split, system, len(items) + 1)
            if item.product not in names
        )
        items.append(new)
        return dice.pick(ADDS).format(i=spell_item(dice, new))
    qty = old.qty % 12 + 1
    items[index] = Item(product=old.product, qty=dice.pick((qty, qty % 12 + 1)))
    return dice.pick(CHANGES).format(n=items[index].qty, p=old.product)


def _listed(items: Sequence[Item]) -> str:
    return ", ".join(f"{item.qty} x {item.product}" for item in items)

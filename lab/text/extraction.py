"""JSON extraction: nested objects, lists, optional fields, and the parts that the request names."""

from __future__ import annotations

import json

from lab.text.dialogue import Exchange
from lab.text.dice import Dice, Split
from lab.text.system import SystemPrompt
from lab.text.tickets import Ticket, draw_ticket

PARTS = ("customer", "order", "issue", "priority", "wish")
FULL_REQUESTS = (
    "Extract the ticket as JSON.",
    "Turn this ticket into JSON.",
    "Give me the ticket as a JSON object.",
    "Read the ticket and return JSON.",
)
PART_REQUESTS = (
    "Extract only {parts} as JSON.",
    "Return JSON with {parts}.",
    "As JSON, in this order: {parts}.",
    "Give me {parts} of the ticket as JSON.",
)
FLAT_REQUESTS = (
    "Extract the ticket as flat JSON.",
    "Return one flat JSON object.",
    "Flatten the ticket into JSON.",
)


def extraction(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A request for a ticket as JSON; ``expected`` is the object's one-line text."""
    ticket = draw_ticket(dice, split, system)
    style = dice.weighted((("full", 0.5), ("parts", 0.3), ("flat", 0.2)))
    if style == "full":
        request, answer = dice.pick(FULL_REQUESTS), nested(ticket)
    elif style == "parts":
        chosen = dice.sample(PARTS, dice.between(2, 4))
        names = ", ".join(chosen[:-1]) + " and " + chosen[-1]
        whole = nested(ticket)
        request = dice.pick(PART_REQUESTS).format(parts=names)
        answer = {part: whole[part] for part in chosen if part in whole}
    else:
        request, answer = dice.pick(FLAT_REQUESTS), flat(ticket)
    body = (
        f"{request}\nTicket: {ticket.text}" if dice.chance(0.7) else f"{ticket.text}\n\n{request}"
    )
    text = json.dumps(answer)
    return Exchange(
        task="json_extraction", user=body, reply=text, scorer="json_exact", expected=text
    )


def nested(ticket: Ticket) -> dict[str, object]:
    """The ticket as nested objects; what it does not say is left out."""
    customer = {"name": ticket.name}
    if ticket.email:
        customer["email"] = ticket.email
    if ticket.city:
        customer["city"] = ticket.city
    whole: dict[str, object] = {
        "customer": customer,
        "order": {
            "id": ticket.order_id,
            "items": [{"product": item.product, "qty": item.qty} for item in ticket.items],
        },
        "issue": ticket.issue,
        "priority": ticket.priority,
    }
    if ticket.wish:
        whole["wish"] = ticket.wish
    return whole


def flat(ticket: Ticket) -> dict[str, object]:
    """The ticket as one level of keys; what it does not say is null, quantities are summed."""
    return {
        "name": ticket.name,
        "email": ticket.email,
        "city": ticket.city,
        "order_id": ticket.order_id,
        "products": [item.product for item in ticket.items],
        "pieces": sum(item.qty for item in ticket.items),
        "issue": ticket.issue,
        "priority": ticket.priority,
    }

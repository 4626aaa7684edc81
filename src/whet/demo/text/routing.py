"""Routing: which desk takes a ticket, by the table of the system prompt."""

from __future__ import annotations

from whet.demo.text.dialogue import Exchange
from whet.demo.text.dice import Dice
from whet.demo.text.split import Split
from whet.demo.text.system import SystemPrompt
from whet.demo.text.tickets import draw_ticket

REQUESTS = (
    "Which desk takes this ticket?",
    "Route this ticket.",
    "Name the desk for this ticket.",
    "Who should get this ticket?",
)


def routing(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A ticket whose issue decides the desk; the reply is the desk's name."""
    ticket = draw_ticket(dice, split, system)
    desk = system.shop.routing[ticket.issue]
    body = f"{dice.pick(REQUESTS)}\nTicket: {ticket.text}"
    return Exchange(task="routing", user=body, reply=desk, scorer="exact", expected=desk)

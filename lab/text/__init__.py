"""Support-desk text made from a seed: what the demo pair is trained and tested on."""

from lab.text.corpus import document, documents, draw_exchange, draw_system
from lab.text.dialogue import Document, Exchange, Message
from lab.text.dice import Dice, Split, split_of

__all__ = [
    "Dice",
    "Document",
    "Exchange",
    "Message",
    "Split",
    "document",
    "documents",
    "draw_exchange",
    "draw_system",
    "split_of",
]

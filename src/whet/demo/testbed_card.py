"""The model card of a testbed."""

from __future__ import annotations

from typing import Final

from whet import __version__
from whet.demo.widen import Widening

_TEXT: Final = """\
# A testbed, not a model

The {role} of whet's demo pair, widened. It costs what a model of its size costs, and answers what
the demo {role} answers. Made by whet {version}; nothing was trained.

| | parameters | sizes |
|---|---|---|
| this testbed | {parameters:,} | {text} |
| the demo {role} | {small:,} | {small_text} |

| of its weights | share |
|---|---|
| are the demo {role}'s own (norm weights rescaled) | {own:.2%} |
| are zero, so that nothing else changes the output | {zeros:.1%} |
| are random, at the scale of the real ones, so that kernels and quantizers get data | {rest:.1%} |

Source weights: SHA-256 `{sha256}` (over the tensors in the order of their names).

## What can be measured on it

- Speed, memory, acceptance of a draft and task scores can be measured on it: the work of a step is
  that of the whole shape, and the tokens are true answers. A table made on it must say so.
- **It does not show how a real model of this size tolerates 4 bits**, or 8: its answers depend on
  the few weights that are the demo model's own. Its quality after quantization is that of a
  demo model whose weights are stored beside random ones.
- Most weights of `o_proj` and `down_proj` are zero. Dense kernels take the same time for them, yet
  a GPU draws less power on zeros and may clock higher, and a sparse or compressed store would look
  better than it is.
- Its language is a made-up support desk of 4,096 tokens. Contexts end at {positions:,} tokens, and
  the training text ended at 1,536.
{vocabulary}"""

_VOCABULARY: Final = """\
- The vocabulary is padded from {narrow:,} to {wide:,} entries. An added entry is never chosen: a
  channel that is zero otherwise holds a constant, which gives every added entry a large negative
  logit.
"""


def card_text(role: str, widening: Widening, sha256: str, *, positions: int) -> str:
    """The card of one widened model; ``positions`` is its longest context in tokens."""
    own, zeros = widening.shares()
    vocabulary = ""
    if widening.padded_vocabulary:
        vocabulary = _VOCABULARY.format(
            narrow=widening.narrow.vocabulary, wide=widening.wide.vocabulary
        )
    return _TEXT.format(
        role=role,
        text=widening.wide.text,
        parameters=widening.wide.parameters(),
        small=widening.narrow.parameters(),
        small_text=widening.narrow.text,
        version=__version__,
        own=own,
        zeros=zeros,
        rest=1 - own - zeros,
        sha256=sha256,
        positions=positions,
        vocabulary=vocabulary,
    )

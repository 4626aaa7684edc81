"""Analyses made by hand: plain, with everything, redacted, and of an empty log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whet.core.records import (
    CacheCurve,
    CachePoint,
    Cause,
    Excerpt,
    HitTokens,
    LeftOut,
    PrefillSpeed,
    PrefixNode,
    PromptAnalysis,
    Proposal,
    ReplayResult,
)

HOSTILE = "<script>alert(1)</script> [bold]x[/] [/] :smile: \x1b[31m\u202e"
"""What a prompt may hold: HTML, rich mark-up, an escape code, a bidirectional override."""


def node(start: int, tokens: int, requests: int, text: str | None, **change: Any) -> PrefixNode:
    return PrefixNode(start=start, tokens=tokens, requests=requests, text=text, **change)


def curve(*points: tuple[int, int], whole: int = 10_000) -> CacheCurve:
    made = tuple(CachePoint(blocks=blocks, hit_tokens=hits) for blocks, hits in points)
    return CacheCurve(block_size=16, prompt_tokens=whole, points=made)


def hits(found: int, whole: int = 10_000) -> HitTokens:
    return HitTokens(prompt_tokens=whole, hit_tokens=found)


def excerpt(**change: Any) -> Excerpt:
    given: dict[str, Any] = {
        "place": "log.jsonl:12",
        "other_place": "log.jsonl:3",
        "token": 21,
        "before": "You help. Today is ",
        "here": "2026-11-20",
        "there": "2026-11-19",
        "after": ". Answer\nbriefly",
    }
    return Excerpt(**(given | change))


def plain() -> PromptAnalysis:
    """10 requests of 1,000 tokens; 600 shared by all, then two branches and a tail each."""
    tree = node(
        0,
        600,
        10,
        "You help.",
        children=(
            node(600, 200, 6, "Today is 2026-11-19."),
            node(600, 100, 3, "Today is 2026-11-20.", cause="date"),
            node(600, 400, 1, "Hello"),
        ),
    )
    date = Cause(
        kind="date",
        requests=3,
        tokens=1200,
        where="the system message",
        mend="Put the date last.",
        examples=(excerpt(),),
    )
    return PromptAnalysis(
        source="log.jsonl",
        model="demo",
        requests=10,
        left_out=(),
        first_at_ns=None,
        last_at_ns=None,
        block_size=16,
        cache_blocks=None,
        hits=hits(6120),
        sized=None,
        repaired=hits(9340),
        repaired_sized=None,
        curve=curve((1, 160), (64, 3200), (512, 6120)),
        repaired_curve=curve((1, 480), (64, 8000), (256, 9340)),
        causes=(date,),
        tree=tree,
        proposals=(),
    )


def whole() -> PromptAnalysis:
    """Everything that a report can hold, its texts hostile."""
    base = plain()
    space = Cause(
        kind="whitespace",
        requests=2,
        tokens=3000,
        where="line 1 of the system message [bold]",
        mend="Take the trailing blank out.",
        since_ns=1_795_167_000_000_000_000,
        examples=(
            excerpt(before="You help.  ", here=" \n", there="\n", after="\tRules" + HOSTILE),
        ),
    )
    odd = Cause(kind="moon", requests=1, tokens=1, where="|there|", mend=HOSTILE)
    before = f"Today is 2026-11-20.\n{HOSTILE}\n" + "".join(f"rule {n}\n" for n in range(40))
    after = f"{HOSTILE}\n" + "".join(f"rule {n}\n" for n in range(40)) + "Today is 2026-11-20.\n"
    common: dict[str, Any] = {"requests": 3, "place": "log.jsonl:12"}
    proposals = (
        Proposal(
            kinds=("date",),
            title="The date goes last",
            hits=hits(8000),
            before=before,
            after=after,
            **common,
        ),
        Proposal(
            kinds=("whitespace", "json"),
            title="One form of white space " + HOSTILE,
            hits=hits(9340),
            before="a \nb",
            after="a\nb",
            **common,
        ),
    )
    tree = replace(
        base.tree,
        children=(
            replace(base.tree.children[0], text=HOSTILE),
            replace(base.tree.children[1], other_children=2, other_requests=2),
        ),
        other_children=1,
        other_requests=1,
    )
    replays = (
        ReplayResult(
            what="as it is",
            requests=10,
            predicted=hits(6120),
            measured=hits(6100),
            ttft_mean_s=0.412,
        ),
        ReplayResult(
            what="repaired",
            requests=10,
            predicted=hits(9340),
            measured=hits(9000),
            ttft_mean_s=None,
            differs="Two requests ran at once [/].",
        ),
    )
    return replace(
        base,
        left_out=(LeftOut(reason="a torn line", count=3, first="log.jsonl:7"),),
        first_at_ns=1_795_167_000_000_000_000,
        last_at_ns=1_795_253_400_000_000_000,
        cache_blocks=128,
        sized=hits(5000),
        repaired_sized=hits(9010),
        causes=(*base.causes, space, odd),
        tree=tree,
        proposals=proposals,
        speed=PrefillSpeed(s_per_token=0.001, fixed_s=0.05, source="run demo"),
        replays=replays,
    )


def redacted() -> PromptAnalysis:
    """``whole`` as ``--redact`` leaves it."""
    full = whole()
    blank: dict[str, Any] = {"before": None, "here": None, "there": None, "after": None}
    return replace(
        full,
        causes=tuple(
            replace(
                cause,
                mend="Mend it.",
                examples=tuple(replace(one, **blank) for one in cause.examples),
            )
            for cause in full.causes
        ),
        proposals=tuple(
            replace(one, title="A mend", before=None, after=None) for one in full.proposals
        ),
        tree=without_text(full.tree),
    )


def without_text(tree: PrefixNode) -> PrefixNode:
    return replace(tree, text=None, children=tuple(map(without_text, tree.children)))


def empty() -> PromptAnalysis:
    """A log without a request."""
    none = hits(0, 0)
    flat = curve((0, 0), whole=0)
    return replace(
        plain(),
        requests=0,
        hits=none,
        repaired=none,
        curve=flat,
        repaired_curve=flat,
        causes=(),
        tree=node(0, 0, 0, None),
    )


def unlucky() -> PromptAnalysis:
    """Requests that share nothing: no hit, no cause, nothing to mend."""
    tree = node(0, 0, 2, "", children=(node(0, 500, 1, "Hi"), node(0, 300, 1, "Ho")))
    flat = curve((50, 0), whole=800)
    return replace(
        plain(),
        requests=2,
        hits=hits(0, 800),
        repaired=hits(0, 800),
        curve=flat,
        repaired_curve=flat,
        causes=(),
        tree=tree,
    )

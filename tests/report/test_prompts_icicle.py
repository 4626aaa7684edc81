"""The icicle: areas are tokens × requests, what is lost is hatched, the file is well-formed."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.report.prompts_factory import HOSTILE, empty, node, plain, redacted, unlucky, whole
from whet.core.records import CAUSES, PrefixNode
from whet.report.prompts_icicle import ICICLE_STYLES, Box, icicle_svg, lay_out

SVG = "{http://www.w3.org/2000/svg}"


def drawn(tree: PrefixNode, *, hidden: bool = False) -> list[ElementTree.Element]:
    """The groups of the picture, the legend's left out."""
    root = ElementTree.fromstring(icicle_svg(tree, redacted=hidden))
    return [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]


def measures(group: ElementTree.Element) -> tuple[float, float, float, float]:
    [rect] = group.iter(f"{SVG}rect")
    x, y, wide, tall = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, wide, tall


def text_of(groups: list[ElementTree.Element]) -> str:
    return " ".join("".join(group.itertext()) for group in groups)


def test_areas_are_tokens_times_requests() -> None:
    """600 × 10, 200 × 6, 100 × 3 and 400 × 1, by hand."""
    sizes = [measures(group) for group in drawn(plain().tree)]
    first = sizes[0][2] * sizes[0][3]
    areas = [wide * tall / first for _, _, wide, tall in sizes]
    assert areas == pytest.approx([1, 1200 / 6000, 300 / 6000, 400 / 6000], rel=1e-3)
    [_, six, three, one] = sizes
    assert six[0] == three[0] == one[0] == pytest.approx(sizes[0][0] + sizes[0][2])
    assert six[1] + six[3] == pytest.approx(three[1], abs=0.02)
    assert three[1] + three[3] == pytest.approx(one[1], abs=0.02)


def test_a_lost_branch_is_hatched_labelled_and_in_the_legend() -> None:
    groups = drawn(plain().tree)
    assert [group.attrib["class"] for group in groups] == ["shared", "shared", "lost", "single"]
    [rect] = groups[2].iter(f"{SVG}rect")
    assert rect.attrib["fill"] == "url(#hatch-date)"
    assert "100 tokens after 600, 3 requests (30.0%); lost to dates and times" in text_of(groups)
    picture = icicle_svg(plain().tree, redacted=False)
    assert '<pattern id="hatch-date" class="cause-date"' in picture
    assert "lost: dates and times" in picture
    assert "hatch-json" not in picture


def test_every_cause_has_a_look_of_its_own() -> None:
    assert set(ICICLE_STYLES) == set(CAUSES)
    picture = icicle_svg(
        node(0, 9, 9, "a", children=tuple(node(9, 9, 1, "b", cause=kind) for kind in CAUSES)),
        redacted=False,
    )
    patterns = ElementTree.fromstring(picture).iter(f"{SVG}pattern")
    assert {pattern.attrib["class"] for pattern in patterns} == {f"cause-{kind}" for kind in CAUSES}
    for shade in ("light", "dark"):
        assert len({getattr(style, shade) for style in ICICLE_STYLES.values()}) == len(CAUSES)


def box(css: str, boxes: list[Box]) -> Box:
    [found] = [item for item in boxes if item.css == css]
    return found


def test_small_branches_and_counted_ones_are_one_block() -> None:
    """Of 100 requests 90 share a branch; 4 and 3 are too small, 3 more are only counted."""
    tree = node(
        0,
        50,
        100,
        "a",
        children=(node(50, 10, 90, "b"), node(50, 30, 4, "c"), node(50, 9, 3, "d")),
        other_children=2,
        other_requests=3,
    )
    boxes = lay_out(tree, 5)
    assert [item.requests for item in boxes] == [100, 10, 90]
    rest = box("rest", boxes)
    assert (rest.branches, rest.top, rest.start) == (4, 90, 50)
    assert rest.end - rest.start == pytest.approx((4 * 30 + 3 * 9) / 7)
    said = text_of(drawn(replace(tree, other_children=2, other_requests=8, requests=105)))
    assert "2 smaller branches after 50 tokens, 8 requests (7.6%)" in said
    assert "2 others" in said


def test_others_are_lost_where_all_their_siblings_are() -> None:
    lost = [node(5, 5, count, "x", cause="id") for count in (3, 2)]
    main = node(5, 5, 4, "main")
    tree = node(0, 5, 20, "a", children=(main, *lost), other_children=9, other_requests=9)
    assert box("lost rest", lay_out(tree, 1)).cause == "id"
    mixed = replace(tree, children=(main, lost[0], replace(lost[1], cause="date")))
    assert box("rest", lay_out(mixed, 1)).cause is None


def test_requests_that_end_leave_their_room_empty() -> None:
    tree = node(0, 5, 10, "a", children=(node(5, 5, 4, "b"),))
    assert [item.requests for item in lay_out(tree, 1)] == [10, 4]


def test_few_long_prompts_do_not_squeeze_the_others() -> None:
    """One of 1,000 requests goes on for 15,000 tokens: 15,000 of 1,015,000 is under 2%."""
    tree = node(0, 1000, 1000, "a", children=(node(1000, 15_000, 1, "b"),))
    picture = icicle_svg(tree, redacted=False)
    assert "Cut at 1,000 tokens" in picture
    wide = node(0, 1000, 10, "a", children=(node(1000, 15_000, 1, "b"),))
    assert "Cut at" not in icicle_svg(wide, redacted=False)


def test_a_deep_and_broad_tree_stays_drawable() -> None:
    tree = node(3000 * 2, 2, 100, "end")
    for depth in reversed(range(3000)):
        tree = node(2 * depth, 2, 100, "turn", children=(tree,))
    picture = icicle_svg(tree, redacted=False)
    assert picture.count("<title>") == 300
    assert "2,701 smaller runs of tokens not drawn." in picture
    many = tuple(node(10, 5, 1, f"tail {n}") for n in range(5000))
    broad = node(0, 10, 5000, "a", children=many)
    assert [item.requests for item in lay_out(broad, 5000 * 3 / 440)] == [5000, 5000]


@pytest.mark.parametrize("make", [plain, whole, redacted, empty, unlucky])
def test_it_is_well_formed_and_the_same_each_time(make: object) -> None:
    assert callable(make)
    tree = make().tree
    picture = icicle_svg(tree, redacted=False)
    assert ElementTree.fromstring(picture).tag == f"{SVG}svg"
    assert picture == icicle_svg(tree, redacted=False)


def test_hostile_text_stays_text() -> None:
    tree = node(0, 90, 2, HOSTILE + "\ufffe\x00", children=())
    assert "<script" not in icicle_svg(tree, redacted=False)
    assert "<script>alert(1)</script> [bold]x[/]" in text_of(drawn(tree))


def test_redacted_shows_figures_and_no_text() -> None:
    groups = drawn(plain().tree, hidden=True)
    said = text_of(groups)
    assert "You help" not in said
    assert "600 tokens × 10 requests" in said
    assert said.count("(redacted)") == len(groups)
    secret = node(0, 90, 2, "use sk-abcdefgh12345678 now")
    assert "use [redacted] now" in text_of(drawn(secret))


def test_an_empty_tree_says_so() -> None:
    assert "No prompt has a token to draw." in icicle_svg(empty().tree, redacted=False)

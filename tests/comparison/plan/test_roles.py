"""Which arm is a control of which, by what they write and by their names."""

import pytest

from comparison.plan.arms import parse_arms
from comparison.plan.roles import peer_of, roles_by_name
from structured_init import (
    Compose,
    Default,
    Impulse,
    KaimingUniform,
    Mimetic,
    Positions,
    SamePositions,
    initialize,
)

CODES = Positions("codes", kappa=2.0, gain=0.7)


@pytest.mark.parametrize(
    ("control", "arm", "expected"),
    [
        (Positions("sincos"), Mimetic(), True),
        (Positions("gaussian", gain=18.0), Impulse(solver="svd"), True),
        (CODES, Compose([Impulse(solver="separable"), Mimetic(query_key=False, positions="keep")]), True),
        (SamePositions(Impulse()), Impulse(), True),
        (Positions("sincos"), Impulse(), False),  # other positions
        (Positions("sincos"), Compose([KaimingUniform(), Mimetic()]), False),  # other surroundings
        (Compose([KaimingUniform(), Positions("sincos")]), Compose([KaimingUniform(), Mimetic()]), True),
        (KaimingUniform(), Compose([KaimingUniform(), Mimetic()]), False),  # no positions
        (Positions("sincos", trainable=False), Mimetic(), False),
        (Mimetic(value_output=False), Mimetic(), False),  # attention itself
        (Positions("sincos"), Mimetic(positions="keep"), False),
    ],
)
def test_a_peer_has_the_same_positions_and_nothing_else_of_an_arm(tiny_vit, control, arm, expected):
    plan = lambda each: [initialize(tiny_vit(embed_dim=32, num_heads=2), each, seed=0, dry_run=True)]  # noqa: E731
    assert peer_of(arm, plan, {"default": plan(Default()), "control": plan(control)}) == (
        "control" if expected else None
    )


def test_a_control_is_told_by_the_name_of_its_arm_or_by_its_label():
    arms = parse_arms("default,sincos,mine=mimetic,mine_scrambled,turned=mimetic_scrambled,impulse,impulse_positions")
    of_mine = {"mine_scrambled": "scrambled", "turned": "scrambled"}
    assert roles_by_name(arms) == {"mine": of_mine, "impulse": {"impulse_positions": "positions"}}

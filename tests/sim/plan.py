"""A plan: all that a run is made of, drawn from a seed, small enough to read, and smaller after shrinking.

What happens at which time (`steps`) is listed. What befalls a message is not: it follows from the odds and
the message itself (`tests.sim.network`), so that a step or a fault can be taken out without moving others.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Final

import msgspec

from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from tests.sim.dice import Dice

__all__ = ["PROFILES", "ActorPlan", "Odds", "Plan", "Step", "draw_plan"]

_SMALL: Final[dict[str, Any]] = {
    "window_events_max": 16,
    "reorder_events_max": 16,
    "reorder_span_max": 64,
    "digest_history": 256,
    "ring_events_max": 60,
    "feed_log_events_max": 48,
    "feed_log_bytes_max": 8 * 1024,
    "frame_bytes_max": 4096,
    "part_text_bytes_max": 1024,
    "window_bytes_max": 16 * 1024,
    "reorder_bytes_max": 16 * 1024,
    "server_ring_bytes_max": 16 * 1024,
    "ring_bytes_max": 64 * 1024,
    "supersedable_keys_max": 64,
}
_TIGHT: Final[dict[str, Any]] = {
    **_SMALL,
    # So small that a client gives events up, that bytes fill the window before frames do, and that a slow
    # observer loses its place.
    "ring_events_max": 16,
    "window_bytes_max": 4 * 1024,
    "frame_bytes_max": 2 * 1024,
    "part_text_bytes_max": 512,
    "reorder_bytes_max": 8 * 1024,
    "feed_log_events_max": 12,
    "feed_log_bytes_max": 4 * 1024,
}
_QUICK: Final[dict[str, Any]] = {
    "heartbeat_s": 1.0,
    "dead_s": 3.0,
    "gap_timeout_s": 2.0,
    "send_deadline_s": 2.0,
    "hello_timeout_s": 1.0,
    "reconnect_delay_max_s": 1.0,
    "detached_session_s": 8.0,
}
PROFILES: Final[dict[str, Limits]] = {
    "default": DEFAULT_LIMITS,
    "small": replace(DEFAULT_LIMITS, **_SMALL),
    "quick": replace(DEFAULT_LIMITS, **_QUICK),
    "small quick": replace(DEFAULT_LIMITS, **_SMALL, **_QUICK),
    "tight": replace(DEFAULT_LIMITS, **_TIGHT),
    "tight quick": replace(DEFAULT_LIMITS, **_TIGHT, **_QUICK),
}
"""Limits that a fast typist reaches, and times that pass within a run. Old plans have the small ones."""


@functools.cache
def _limits(profile: str, detached_s: float | None) -> Limits:
    limits = PROFILES[profile]
    return limits if detached_s is None else replace(limits, detached_session_s=detached_s)


class Odds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of each kind of fault, for one message."""

    loss: float = 0.0
    duplicate: float = 0.0
    flip: float = 0.0
    truncate: float = 0.0
    late: float = 0.0
    cut: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing can befall a message."""
        return not (self.loss or self.duplicate or self.flip or self.truncate or self.late or self.cut)


class ActorPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody who connects. `principal` is whose token it has."""

    name: str
    role: str
    principal: str = "ann"
    encoding: Encoding = Encoding.MSGPACK
    digest: DigestAlgorithm = DigestAlgorithm.XXH3_64
    unit: Unit = Unit.UTF_16
    hash: HashAlgorithm = HashAlgorithm.XXH3_64
    min_interval_ms: int = 0
    documents: tuple[str, ...] | None = None
    presence: bool = True


class Step(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """At a time, somebody does something, of which `draw` decides the details."""

    at: float
    actor: str
    do: str
    draw: int = 0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run.

    `only` are the message faults that happen, by name; `None` leaves that to the odds. After
    `snapshot_batches` a session's state is stored whole. `detached_s` is in place of the profile's limit.
    """

    seed: int
    profile: str
    durability: str
    odds: Odds
    latency_s: float
    sync_s: float
    chaos_s: float
    actors: tuple[ActorPlan, ...]
    steps: tuple[Step, ...]
    only: tuple[str, ...] | None = None
    snapshot_batches: int = 256
    detached_s: float | None = None

    @property
    def limits(self) -> Limits:
        """Those of server and clients."""
        return _limits(self.profile, self.detached_s)

    @property
    def is_ordered(self) -> bool:
        """Whether what arrives on a connection does so once and in order, as with TCP; it may break."""
        if any(step.do == "odd frame" for step in self.steps):
            return False
        if self.only is None:
            return msgspec.structs.replace(self.odds, cut=0.0).is_clean
        return all(fault.endswith(".cut") for fault in self.only)

    @property
    def is_lossless(self) -> bool:
        """Whether besides no connection breaks, and nothing is held up."""
        has_cuts = self.odds.cut > 0 if self.only is None else bool(self.only)
        return self.is_ordered and not has_cuts and not any(step.do in _HARMS_LINKS for step in self.steps)


_HARMS_LINKS: Final = frozenset(
    {
        *("crash", "cut", "block", "vanish", "die", "twin", "sleep", "stall", "rogue", "swamp", "diverge"),
        *("full disk", "slow disk", "lose disk", "damage", "fail sync", "leave", "late echo", "choke"),
    }
)

_TYPING: Final = (
    ("edit", 50),
    ("edits", 12),
    ("point", 10),
    ("state", 6),
    ("save", 3),
    ("open", 3),
    ("close", 2),
    ("reload", 2),
    ("paste", 2),
    ("insert", 2),
    ("mention", 2),
    ("design", 1),
    ("secret", 1),
)
"""What a producer does, and how often."""
_HARM: Final = (
    ("cut", 6),
    ("block", 5),
    ("stall", 4),
    ("crash", 3),
    ("sleep", 3),
    ("vanish", 3),
    ("diverge", 5),
    ("die", 2),
    ("twin", 2),
    ("ask again", 3),
    ("odd frame", 4),
    ("swamp", 3),
    ("break", 4),
    ("echo", 3),
)
"""What befalls actors besides the faults of messages."""
_STORE_HARM: Final = (
    ("crash", 8),
    ("leave", 4),
    ("late echo", 3),
    ("choke", 3),
    ("full disk", 3),
    ("slow disk", 3),
    ("damage", 2),
    ("lose disk", 1),
    ("fail sync", 1),
)
"""What befalls those whose sessions are stored, and the store."""


def _weighted(table: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    return tuple(name for name, weight in table for _ in range(weight))


_STORE_STREAM: Final = 0x5709E
_TYPING_PICKS: Final = _weighted(_TYPING)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed. Each draws faults of its own; many are absent, so that single ones dominate."""
    dice = Dice(seed)
    profile = dice.pick(("default", "tight", "quick", "tight quick"))
    odds = Odds(
        loss=dice.pick((0.0, 0.0, 0.01, 0.1, 0.3, 0.5)),
        duplicate=dice.pick((0.0, 0.0, 0.05, 0.2)),
        flip=dice.pick((0.0, 0.0, 0.02, 0.1)),
        truncate=dice.pick((0.0, 0.0, 0.0, 0.02)),
        late=dice.pick((0.0, 0.0, 0.1, 0.3)),
        cut=dice.pick((0.0, 0.0, 0.002, 0.01)),
    )
    if dice.happens(0.2):
        odds = Odds(cut=dice.pick((0.0, 0.005, 0.02)))
    chaos_s = dice.pick((2.0, 5.0, 10.0, 20.0))
    actors = _draw_actors(dice)
    harms = () if dice.happens(0.15) else tuple(name for name in _weighted(_HARM) if dice.happens(0.5))
    plan = Plan(
        seed=seed,
        profile=profile,
        durability=dice.pick(("none", "full")),
        odds=odds,
        latency_s=dice.pick((0.0002, 0.002, 0.002, 0.02, 0.05)),
        sync_s=dice.pick((0.0, 0.002, 0.05, 0.5)),
        chaos_s=chaos_s,
        actors=actors,
        steps=_draw_steps(dice, actors, chaos_s, harms),
    )
    # From a stream of its own: what else a seed means stays as it was.
    return _with_store(plan, Dice(seed ^ _STORE_STREAM))


def _with_store(plan: Plan, dice: Dice) -> Plan:
    """Draw what is stored, and what befalls that."""
    durability = plan.durability
    if durability == "none":
        durability = dice.pick(("none", "none", "full"))
    else:
        durability = dice.pick(("full", "full", "full", "relaxed"))
    if durability == "none":
        return plan
    harms = () if dice.happens(0.3) else tuple(name for name in _weighted(_STORE_HARM) if dice.happens(0.5))
    honest = [actor.name for actor in plan.actors if actor.role != "rogue"]
    steps = list(plan.steps)
    for _ in range(dice.between(1, 4) if harms else 0):
        at = round(dice.odds() * plan.chaos_s, 6)
        steps.append(Step(at, dice.pick(honest), dice.pick(harms), dice.draw() >> 32))
    return msgspec.structs.replace(
        plan,
        durability=durability,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
        snapshot_batches=dice.pick((2, 5, 20, 256)),
        detached_s=dice.pick((None, None, 0.5, 3.0)),
    )


def _draw_actors(dice: Dice) -> tuple[ActorPlan, ...]:
    actors = [_draw_actor(dice, "p1", "produce")]
    if dice.happens(0.3):
        actors.append(_draw_actor(dice, "p2", dice.pick(("produce", "both"))))
    actors += [_draw_actor(dice, f"o{index + 1}", "observe") for index in range(dice.between(1, 2))]
    if dice.happens(0.15):
        actors += [
            _draw_actor(dice, "bp", "produce", principal="bob"),
            _draw_actor(dice, "bo", "observe", principal="bob"),
        ]
    if dice.happens(0.22):
        actors.append(_draw_actor(dice, "r", "rogue", principal=dice.pick(("ann", "mallory"))))
    return tuple(actors)


def _draw_actor(dice: Dice, name: str, role: str, principal: str = "ann") -> ActorPlan:
    is_watching = role in ("observe", "both")
    return ActorPlan(
        name=name,
        role=role,
        principal=principal,
        encoding=dice.pick((Encoding.MSGPACK, Encoding.MSGPACK, Encoding.JSON)),
        digest=dice.pick(tuple(DigestAlgorithm)),
        unit=dice.pick((Unit.UTF_16, Unit.UTF_16, Unit.UTF_8, Unit.UTF_32)),
        hash=dice.pick(tuple(HashAlgorithm)),
        min_interval_ms=dice.pick((0, 0, 50, 500)) if is_watching else 0,
        documents=dice.pick((None, None, None, ("file:///*/0.py",))) if is_watching else None,
        presence=dice.pick((True, True, False)) if is_watching else True,
    )


def _draw_steps(
    dice: Dice, actors: tuple[ActorPlan, ...], chaos_s: float, harms: tuple[str, ...]
) -> tuple[Step, ...]:
    steps: list[Step] = []
    producers = [actor.name for actor in actors if actor.role in ("produce", "both")]
    honest = [actor.name for actor in actors if actor.role != "rogue"]
    for name in producers:
        at = 0.0
        for _ in range(dice.pick((30, 65, 105)) // len(producers)):
            # Bursts, with pauses between.
            at += dice.pick((0.0, 0.0, 0.001, 0.01, 0.05, 0.3, 1.0)) * dice.odds()
            steps.append(Step(round(at % chaos_s, 6), name, dice.pick(_TYPING_PICKS), dice.draw() >> 32))
        if dice.happens(0.6):
            # What is lost of the last burst, no later one shows.
            at = round(chaos_s - 0.03 * dice.odds(), 6)
            steps.append(Step(at, name, dice.pick(("edits", "edit", "point")), dice.draw() >> 32))
    for _ in range(dice.between(0, 6) if harms else 0):
        at = round(dice.odds() * chaos_s, 6)
        steps.append(Step(at, dice.pick(honest), dice.pick(harms), dice.draw() >> 32))
    if any(actor.role == "rogue" for actor in actors):
        for _ in range(dice.between(3, 20)):
            at = round(dice.odds() * chaos_s, 6)
            steps.append(Step(at, "r", "rogue", dice.draw() >> 32))
    return tuple(sorted(steps, key=lambda step: step.at))

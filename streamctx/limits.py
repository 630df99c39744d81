"""Every limit of the product, with its unit, reason and relations (SPEC section 15)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "KIB", "MIB", "Limits"]

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All maxima and durations. Bytes are bytes, times are seconds.

    Raises:
        ValueError: If two limits contradict each other.
    """

    frame_bytes_max: int = 256 * KIB
    """One frame. A larger one, up to `websocket_message_bytes_max`, fails alone."""
    websocket_message_bytes_max: int = MIB
    """One WebSocket message; a larger one closes the connection with 1009."""
    before_welcome_bytes_max: int = 64 * KIB
    """All that a stranger may send before WELCOME."""
    websocket_fragment_count_max: int = 1024
    """Fragments of one WebSocket message."""
    request_head_bytes_max: int = 32 * KIB
    request_head_timeout_s: float = 5.0
    hello_timeout_s: float = 5.0
    hello_repeat_s: float = 0.25

    reorder_events_max: int = 1024
    """Frames held ahead of a gap; the newest is dropped, unacknowledged, beyond it."""
    reorder_bytes_max: int = MIB
    reorder_span_max: int = 8192
    """How far ahead of the next expected number a frame may be."""
    ack_ranges_max: int = 32
    nack_ranges_max: int = 64
    digest_history: int = 4096
    """How many digests of received frames are kept, to tell duplicate from conflict."""

    window_events_max: int = 1024
    """Numbered frames that may be under way, sent and not yet received."""
    window_bytes_max: int = MIB
    ring_events_max: int = 10_000
    """Client: frames kept for retransmission plus events not yet sent, together."""
    ring_bytes_max: int = 16 * MIB
    outbox_bytes_max: int = 64 * MIB
    """Client: the outbox on disk, texts included; beyond three quarters of it nothing is kept."""
    server_ring_bytes_max: int = MIB
    """Server: frames kept for one client or observer; a feed pauses at it."""

    nack_interval_min_s: float = 0.05
    nack_interval_max_s: float = 2.0
    nack_attempts_max: int = 16
    gap_timeout_s: float = 10.0
    """After this, or `nack_attempts_max`, a gap is announced as lost."""
    linger_s: float = 0.01
    """A frame is retransmitted at most once in this time, or in one round trip."""
    retransmit_bytes_max: int = 256 * KIB
    """Retransmitted in answer to one NACK; what remains is asked for again."""
    ack_delay_s: float = 0.012
    """How long an ACK waits at most for what is becoming durable."""
    tail_probe_s: float = 0.02
    """How long after the last frame of a burst a heartbeat looks for its loss."""
    heartbeat_s: float = 15.0
    dead_s: float = 45.0
    """A peer from which no byte came for this long is gone."""
    send_deadline_s: float = 15.0
    """A peer that takes no byte for this long is cut off."""
    corrupt_window_frames: int = 64
    """More than half of so many frames corrupt closes the connection."""

    part_text_bytes_max: int = 64 * KIB
    """UTF-8 bytes of text in one `open`, `snapshot` or `part`."""
    document_bytes_max: int = 50_000_000
    documents_per_session_max: int = 200
    documents_bytes_max: int = 1024 * MIB
    """All document texts of the server together."""
    changes_per_edit_max: int = 10_000
    snapshot_failures_max: int = 3
    supersedable_keys_max: int = 2048
    """Latest-wins values kept for one session."""

    feed_log_events_max: int = 8192
    """Applied events kept for observers that are a little behind; none while a session has no observer."""
    feed_log_bytes_max: int = MIB
    subscriptions_per_session_max: int = 64

    connections_max: int = 10_000
    unauthenticated_connections_max: int = 128
    connections_per_address_max: int = 10_000
    sessions_max: int = 10_000
    detached_session_s: float = 900.0
    """A session without a connection is kept in memory for this long."""
    retention_s: float = 7 * 86_400.0
    """A session that is stored can be resumed for this long after its last change."""
    drain_s: float = 10.0
    close_wait_s: float = 2.0
    reconnect_delay_min_s: float = 0.25
    reconnect_delay_max_s: float = 10.0

    def __post_init__(self) -> None:
        """Check how the limits relate."""
        # A part, even if every character of it is escaped, must fit a frame.
        _require(self.part_text_bytes_max < self.frame_bytes_max, "part_text_bytes_max < frame_bytes_max")
        _require(
            self.frame_bytes_max <= self.websocket_message_bytes_max,
            "frame_bytes_max <= websocket_message_bytes_max",
        )
        # What a sender may have under way must fit what the receiver can hold behind a gap.
        _require(self.window_events_max <= self.reorder_events_max, "window_events_max <= reorder_events_max")
        _require(self.window_bytes_max <= self.reorder_bytes_max, "window_bytes_max <= reorder_bytes_max")
        _require(self.reorder_events_max <= self.reorder_span_max, "reorder_events_max <= reorder_span_max")
        # Every number that can come again is still known by its digest.
        _require(self.window_events_max <= self.digest_history, "window_events_max <= digest_history")
        # An ACK that waits is not to be taken for one that was lost.
        _require(self.ack_delay_s < self.tail_probe_s, "ack_delay_s < tail_probe_s")
        _require(self.heartbeat_s * 2 < self.dead_s, "2 * heartbeat_s < dead_s")
        # A frame that may be sent must fit the ring whole.
        _require(self.window_bytes_max <= self.ring_bytes_max, "window_bytes_max <= ring_bytes_max")
        # Frames that wait for the server are kept with texts beside them.
        _require(self.ring_bytes_max < self.outbox_bytes_max, "ring_bytes_max < outbox_bytes_max")


def _require(holds: bool, relation: str) -> None:
    if not holds:
        raise ValueError(f"limits contradict each other: {relation} does not hold")


DEFAULT_LIMITS = Limits()

"""The mistakes that the simulator must find: each could be made, in the place where it would be."""

from __future__ import annotations

from typing import Final

from tests.sim.mutants import Mutant, Substitution

__all__ = ["MUTANTS"]

_WINDOW = "streamctx.core.delivery.receive_window:ReceiveWindow"
_RING = "streamctx.core.delivery.retransmit_ring:RetransmitRing"
_GAPS = "streamctx.core.delivery.gap_detector:GapDetector"
_DELIVERY = "streamctx.core.session.delivery:Delivery"
_CLIENT = "streamctx.core.session.client_session:ClientSession"
_OUTGOING = "streamctx.core.session.outgoing:Outgoing"
_OUTBOX = "streamctx.core.session.outbox:Outbox"
_SERVER = "streamctx.core.session.server_session:ServerSession"
_CONTEXT = "streamctx.core.session.live_context:LiveContext"
_DOCUMENT = "streamctx.core.documents.document:Document"
_FEED = "streamctx.core.session.observer_feed:Feed"
_FILTER = "streamctx.core.session.observer_feed:FeedFilter"
_LOG = "streamctx.core.session.feed_log:FeedLog"
_HUB = "streamctx.hub.hub:Hub"
_HANDSHAKES = "streamctx.hub.handshakes:Handshakes"
_CONNECTION = "streamctx.hub.connection:Connection"
_SECRETS = "streamctx.hub.registry:Secrets"
_REGISTRY = "streamctx.hub.registry:Registry"
_HELD = "streamctx.hub.registry:Held"
_STORAGE = "streamctx.hub.storage:Storage"

MUTANTS: Final[tuple[Mutant, ...]] = (
    # What is received.
    Mutant(
        name="no duplicate check",
        target=f"{_WINDOW}._receive_beside_gap",
        old="        return Verdict.DUPLICATE\n",
        new="        return Verdict.APPLY_NOW\n",
        why="applying twice is thought to do no harm",
        checkers=("InOrderOnce", "FeedOrder"),
    ),
    Mutant(
        name="no conflict check",
        target=f"{_WINDOW}._receive_beside_gap",
        old="if self._contradicts(sequence, digest):",
        new="if False:",
        why="a known number is taken for a known frame",
        checkers=("ConflictFound",),
    ),
    Mutant(
        name="what overflows is acknowledged",
        target=f"{_WINDOW}._receive_beside_gap",
        old="        self.counters.overflowed += 1\n",
        new="        self.counters.overflowed += 1\n        self._present.add(sequence, sequence + 1)\n",
        why="the number is noted before it is known whether there is room",
        checkers=("NoHole", "AckTruth"),
    ),
    Mutant(
        name="reorder buffer unbounded",
        target=f"{_WINDOW}._receive_beside_gap",
        old="        self.counters.overflowed += 1\n        return Verdict.OVERFLOW\n",
        new="        self.counters.overflowed += 1\n",
        why="overflow is counted, and goes on as if there were room",
        checkers=("Bounded",),
    ),
    Mutant(
        name="a long buffer gives its gap up",
        target=f"{_DELIVERY}._receive_numbered",
        old="    if verdict is Verdict.APPLY_NOW:\n",
        new="    if verdict is Verdict.HELD and window.held_count > 8:\n"
        "        window.skip(window.expected, sequence)\n"
        "        return self._released()\n"
        "    if verdict is Verdict.APPLY_NOW:\n",
        why="so much has come behind the gap that waiting seems pointless",
        checkers=("SkipHonest", "FeedOrder"),
    ),
    Mutant(
        name="SKIP moves the cursor to its end",
        target=f"{_WINDOW}._fill",
        old="    if missing[0][0] == self._expected:\n        self._advance(missing[0][1])\n",
        new="    self._advance(stop)\n",
        why="a SKIP is taken for one of the numbers that are next",
        checkers=("NoHole", "AckTruth"),
    ),
    Mutant(
        name="SKIP hides what is held",
        target=f"{_WINDOW}._fill",
        old="    if missing[0][0] == self._expected:\n",
        new="    for number in range(start, stop):\n"
        "        if self._held.pop(number, None) is not None:\n"
        "            self._order.remove(number)\n"
        "    if missing[0][0] == self._expected:\n",
        why="what the peer says it will not send needs no room any more",
        checkers=("NoHole", "SkipHonest"),
    ),
    Mutant(
        name="no digest check",
        target="streamctx.wire.frames:parse_frame",
        old="if digest(covered) != stated:",
        new="if False:",
        why="TCP has a checksum already",
        checkers=("NoInvention", "Accepted", "Converge", "Quiet", "FeedContinuity", "TextAtVersion"),
    ),
    Mutant(
        name="no digest check of text frames",
        target="streamctx.wire.frames:_parse_text",
        old="if expected.hex().encode() != data[:_HEX_DIGITS]:",
        new="if False:",
        why="JSON that parses is good",
        checkers=("NoInvention", "Accepted", "Converge", "Quiet", "AckTruth", "TextAtVersion"),
    ),
    Mutant(
        name="the number of a corrupt frame is believed",
        target=f"{_DELIVERY}._receive_corrupt",
        old="    self._counters.corrupt += 1\n",
        new="    self._counters.corrupt += 1\n"
        "    if self._encoding is Encoding.MSGPACK and len(data) > 24:\n"
        "        self._window.announce_next(int.from_bytes(data[16:24], 'big') + 1)\n",
        why="its head tells what has to be asked for",
        checkers=("GapClosed", "Lossless", "Calm", "Asked", "NoHole"),
    ),
    # What is acknowledged.
    Mutant(
        name="acknowledged before it is applied",
        target=f"{_DELIVERY}._watermarks",
        old="received = self._window.expected",
        new="received = self._window.known_stop",
        why="the highest number is acknowledged, and not the one before the first gap",
        checkers=("AckTruth",),
    ),
    Mutant(
        name="acknowledged before it is journalled",
        target=f"{_SERVER}._keep",
        old="        self.delivery.hold_durable(sequence)\n",
        new="        pass\n",
        why="the batch will be safe soon enough",
        checkers=("Durable",),
    ),
    Mutant(
        name="one safe batch frees those behind it",
        target=f"{_SERVER}.journal_done",
        old="self.delivery.hold_durable(self._journal_pending[0].first)",
        new="self.delivery.hold_durable(None)",
        why="batches are thought to come one at a time",
        checkers=("Durable",),
    ),
    Mutant(
        name="ring released at received",
        target=f"{_DELIVERY}._take_ack",
        old="release = ack.durable if self._releases_at_durable else ack.applied",
        new="release = ack.applied",
        why="what the server has applied is thought to be safe",
        checkers=("Durable", "Kept"),
    ),
    Mutant(
        name="lost numbers not told in ACK",
        target=f"{_DELIVERY}.send_ack",
        old="lost=self.given_up_ranges,",
        new="lost=(),",
        why="the field is optional",
        checkers=("LossTold",),
    ),
    Mutant(
        name="limit of an earlier life shows an ACK",
        target=f"{_DELIVERY}.expect_welcome",
        old="max(self._limit, self.known_stop + self._limits.window_events_max)",
        new="self._limit",
        why="nobody could use the number but by an ACK",
        checkers=("LossTold",),
    ),
    # How gaps are repaired.
    Mutant(
        name="no tail probe",
        target=f"{_DELIVERY}.flush",
        old="self._probe_at = now + self._probe_interval()",
        new="pass",
        why="the next frame, or the next heartbeat, will show the loss",
        checkers=("Converge", "GapClosed"),
    ),
    Mutant(
        name="next number of heartbeats not heeded",
        target=f"{_DELIVERY}._receive_unnumbered",
        old="        self._window.announce_next(item.next)\n",
        new="",
        why="a heartbeat is taken for an ACK",
        checkers=("Converge", "GapClosed"),
    ),
    Mutant(
        name="heartbeat without the next number",
        target=f"{_DELIVERY}.send_heartbeat",
        old="next=self._ring.next_sequence if next_sequence is None else next_sequence,",
        new="next=self._ring.received,",
        why="what the peer has received is told back to it",
        checkers=("Converge", "GapClosed"),
    ),
    Mutant(
        name="no NACK",
        target=f"{_DELIVERY}._ask",
        old='    if ranges:\n        self._send_nack(tuple(ranges), "gap")\n',
        new="",
        why="the sender will notice by its timer",
        checkers=("Asked", "GapClosed", "Converge"),
    ),
    Mutant(
        name="NACK without backoff",
        target=f"{_GAPS}.ranges_to_ask",
        old="interval_s * _BACKOFF_FACTOR ** min(gap.attempts, _BACKOFF_STEPS_MAX)",
        new="interval_s",
        why="asking is cheap",
        checkers=("NackBound",),
    ),
    Mutant(
        name="NACK without backoff or end",
        target=f"{_GAPS}._has_given_up",
        old="return now >= gap.deadline or "
        "(gap.attempts >= self._limits.nack_attempts_max and now >= gap.ask_at)",
        new="return False",
        why="never give up",
        checkers=("NackBound", "GapClosed", "Converge", "Calm"),
        masked_by="backoff",
        off=(
            Substitution(
                f"{_GAPS}.ranges_to_ask",
                "interval_s * _BACKOFF_FACTOR ** min(gap.attempts, _BACKOFF_STEPS_MAX)",
                "interval_s",
            ),
        ),
    ),
    Mutant(
        name="retransmission packed anew",
        target=f"{_DELIVERY}._send_frames",
        old="    for _, frame in frames:\n"
        "        assert isinstance(frame, bytes)\n"
        "        self._out.append(frame)\n",
        new="    for sequence, frame in frames:\n"
        "        parsed = parse_frame(frame, encoding=self._encoding, digest=self._digest)\n"
        "        self._out.append(pack_frame(bytes(parsed.body), encoding=self._encoding,\n"
        "                         digest=self._digest, sequence=sequence))\n",
        why="bodies are kept in order to save memory, and the stream is forgotten",
        checkers=("SameBytes",),
    ),
    Mutant(
        name="retransmission renumbered",
        target=f"{_DELIVERY}.resume_sending",
        old="        self._send_frames(frames)\n",
        new="        for at, (_, frame) in enumerate(frames):\n"
        "            parsed = parse_frame(frame, encoding=self._encoding, digest=self._digest)\n"
        "            self._out.append(pack_frame(bytes(parsed.body), encoding=self._encoding,\n"
        "                                        digest=self._digest,\n"
        "                                        sequence=received + at, stream=parsed.stream))\n",
        why="the numbers that were given up leave a hole in those to be sent",
        checkers=("SameBytes", "SendOrder"),
    ),
    Mutant(
        name="answered without linger",
        target=f"{_RING}.frames_for",
        old="if answered_at is not None and now - answered_at < linger_s:",
        new="if False:",
        why="whoever asks gets an answer",
        checkers=("AnsweredOnce",),
    ),
    Mutant(
        name="SKIP for durable events",
        target=f"{_RING}.record",
        old="if not durable and key is not None:",
        new="if key is not None:",
        why="the newest event of a key supersedes the one before, whatever its kind",
        checkers=("SkipHonest", "Quiet"),
    ),
    # Credit.
    Mutant(
        name="credit leaks",
        target=f"{_DELIVERY}._watermarks",
        old="    self._limit = max(self._limit, received + self._limits.window_events_max)\n",
        new="",
        why="the limit of the handshake is thought to be a window",
        checkers=("Credit", "Converge"),
    ),
    Mutant(
        name="credit ignored",
        target=f"{_DELIVERY}.can_send",
        old="return ring.next_sequence < self._peer_limit and ring.may_send(",
        new="return ring.may_send(",
        why="the window is thought to be enough",
        checkers=("Credit",),
    ),
    # Resume.
    Mutant(
        name="resume off by one",
        target=f"{_CLIENT}._continue",
        old="delivery.resume_sending(welcome.expects, welcome.ranges, now)",
        new="delivery.resume_sending(min(welcome.expects + 1, delivery.next_sequence), welcome.ranges, now)",
        why="the number that the server expects is taken for the last one that it has",
        checkers=("ResumeFirst", "Lossless", "GapClosed", "Converge"),
    ),
    Mutant(
        name="stale HELLO accepted",
        target=f"{_HANDSHAKES}._may_resume",
        old="    if hello.attempt <= session.attempt:\n",
        new="    if False:\n",
        why="whoever has the secret may resume",
        checkers=("SingleWriter",),
    ),
    Mutant(
        name="the loser goes on",
        target=f"{_HANDSHAKES}._fence_off",
        old="    if loser is not None:\n",
        new="    if False:\n",
        why="the old connection will close by itself",
        checkers=("SingleWriter", "Quiet", "Converge"),
    ),
    Mutant(
        name="the loser detaches the winner",
        target=f"{_HUB}.detached",
        old="    if by is not None and held.owner is not by:\n        return\n",
        new="",
        why="a connection that fails lets go of its session",
        checkers=("Quiet", "SingleWriter"),
    ),
    Mutant(
        name="secret not checked",
        target=f"{_HANDSHAKES}._may_resume",
        old="    if not secrets.accepts(resume.secret) and not (\n"
        "        secrets.knew(resume.secret) and hello.attempt <= session.attempt\n"
        "    ):\n        return False\n",
        new="",
        why="the session's id is thought to be secret enough",
        checkers=("SecretHolds",),
    ),
    Mutant(
        name="old secrets stay valid",
        target=f"{_SECRETS}.accepts",
        old="return is_pending or is_confirmed",
        new="return is_pending or is_confirmed or self.knew(secret)",
        why="a client may not have written down the newest one",
        checkers=("SecretHolds",),
    ),
    Mutant(
        name="lost ranges not told in WELCOME",
        target=f"{_SERVER}.resume",
        old='        verdict="resynced" if lost else "resumed",\n        lost=lost,\n',
        new='        verdict="resumed",\n        lost=(),\n',
        why="the client knows what it gave up",
        checkers=("VerdictTruth",),
    ),
    Mutant(
        name="epoch kept after a restart",
        target=f"{_HANDSHAKES}._open",
        old="epoch=hub.new_id(),",
        new="epoch=hub.new_id() if hello.resume is None else hello.resume.epoch,",
        why="the client is spared a new start",
        checkers=("EpochHonest",),
    ),
    Mutant(
        name="sweep ends attached sessions",
        target="streamctx.hub.hub:_is_away",
        old="held.session.state is ServerState.DETACHED and ",
        new="",
        why="the time of the last detachment is taken for that of the present one",
        checkers=("Quiet", "Converge", "SingleWriter"),
    ),
    Mutant(
        name="silent peers are not noticed",
        target=f"{_DELIVERY}.flush",
        old="    self._last_sent = now\n",
        new="    self._last_sent = self._last_received = now\n",
        why="a connection that takes what is sent is thought to be alive",
        checkers=("Converge",),
    ),
    Mutant(
        name="no ERROR before a close",
        target=f"{_CONNECTION}.fail",
        old="    if held is None:\n        self._send([self._pack(message)])\n",
        new="    if held is None:\n        pass\n",
        why="the close code says it all",
        checkers=("ErrorBeforeClose",),
    ),
    # Documents.
    Mutant(
        name="snapshot and later edits swapped",
        target=f"{_OUTBOX}.put",
        old="        long_text.held.append(queued)\n",
        new="        self._queue.append(queued)\n",
        why="the parts take long, and what follows is short",
        checkers=("Accepted", "Converge"),
    ),
    Mutant(
        name="edits that a snapshot has are sent after it",
        target=f"{_OUTGOING}.edited",
        old="    if document.alias in self.outbox.snapshots_due:\n"
        "        self._journal.edited(edit, now)\n"
        "        return  # The snapshot has it, and proves itself.\n",
        new="",
        why="every edit is sent",
        checkers=("Accepted", "TextAtVersion"),
    ),
    Mutant(
        name="edit applied over a wrong base",
        target=f"{_DOCUMENT}.edit",
        old="if edit.base != self.version or edit.version <= edit.base:",
        new="if edit.version <= edit.base:",
        why="a higher version is thought to be the next one",
        checkers=("EditBase",),
    ),
    Mutant(
        name="divergence not flagged",
        target=f"{_DOCUMENT}.verify",
        old="_check_whole(self.buffer, length=version.length, hash_=version.hash, "
        "algorithm=self.hash_algorithm)",
        new="pass",
        why="edits that fit are thought to give the same text",
        checkers=("DivergenceFound",),
    ),
    Mutant(
        name="stale for ever",
        target=f"{_DOCUMENT}._accept",
        old="    self.is_stale = False\n",
        new="",
        why="staleness is thought to end with the transfer",
        checkers=("Converge",),
    ),
    Mutant(
        name="healed twice",
        target=f"{_OUTGOING}.take_snapshot_request",
        old="if document.refused is None and not self._is_healing(document, request, applied):",
        new="if document.refused is None:",
        why="every request is answered",
        checkers=("HealedOnce", "Accepted"),
    ),
    Mutant(
        name="lost events leave documents trusted",
        target=f"{_SERVER}._spoil",
        old="    self._replies.extend(self._context.lose(documents, ask=ask))\n",
        new="",
        why="the gap is closed, so all is well",
        checkers=("EditBase", "TextAtVersion", "Converge"),
        masked_by="the base of edits",
        off=(
            Substitution(
                f"{_DOCUMENT}.edit",
                "if edit.base != self.version or edit.version <= edit.base:",
                "if edit.version <= edit.base:",
            ),
        ),
    ),
    Mutant(
        name="excluded document kept",
        target=f"{_CONTEXT}._open",
        old="        if self._excludes(event):\n"
        '            raise EventRefused(ErrorCode.EXCLUDED, "the document is on the redaction list")\n',
        new="",
        why="the client leaves them out already",
        checkers=("Secret", "Converge"),
    ),
    Mutant(
        name="excluded document journalled",
        target=f"{_SERVER}._kept_of",
        old="return Refused(alias, context.refusals[alias]) if is_news else None",
        new="return event",
        why="what was received is journalled, whatever becomes of it",
        checkers=("Secret",),
    ),
    # Presence.
    Mutant(
        name="last value of presence lost",
        target="streamctx.core.delivery.coalescer:Coalescer.put",
        old="    if key in self._dirty:\n        self._dirty[key] = value\n        return\n",
        new="    if key in self._dirty:\n        return\n",
        why="one value of the key is on its way already",
        checkers=("Converge",),
    ),
    Mutant(
        name="older presence overwrites newer",
        target=f"{_CONTEXT}._put",
        old="if not self._presence.is_newer(key, sequence):",
        new="if False:",
        why="events come in order",
        checkers=("InOrderOnce",),
    ),
    Mutant(
        name="close keeps presence",
        target=f"{_CONTEXT}._forget",
        old="had_focus = self._presence.forget_document(alias)",
        new="had_focus = False",
        why="the next cursor will replace it",
        checkers=("Converge",),
    ),
    Mutant(
        name="trailing update not sent",
        target=f"{_SERVER}.next_timeout",
        old="        if feed.has_more and feed.due_at < due",
        new="        if False and feed.due_at < due",
        why="the next event will bring it",
        checkers=("Converge",),
    ),
    # Observers.
    Mutant(
        name="feed advances before there is room",
        target=f"{_SERVER}._pump",
        old="        while feed.has_more and delivery.can_send(room):\n"
        "            body = feed.next_body(now)\n"
        "            if body is None:\n",
        new="        while feed.has_more:\n"
        "            body = feed.next_body(now)\n"
        "            if body is None or not delivery.can_send(room):\n",
        why="whether there is room is asked when the size is known",
        checkers=("FeedContinuity", "Converge", "TextAtVersion"),
    ),
    Mutant(
        name="feed offset off by one",
        target=f"{_FEED}._sync_messages",
        old="    self._position = self._told = offset\n",
        new="    self._position = max(0, offset - 1)\n    self._told = offset\n",
        why="the offset is taken for that of the last event",
        checkers=("FeedContinuity", "Converge", "Calm", "AskedSlowly"),
    ),
    Mutant(
        name="a slow observer goes on with a hole",
        target=f"{_FEED}._next_update",
        old='        self.resyncs += 1\n        self._resync("slow")\n        return self.next_body(now)\n',
        new="        self._position = log.first_offset\n        return self._next_update(now)\n",
        why="what is left of the log is better than nothing",
        checkers=("FeedContinuity", "TextAtVersion", "Converge"),
    ),
    Mutant(
        name="the state is not filtered",
        target=f"{_FEED}._sync_messages",
        old="        if self._filter.takes(uri=uri, is_presence=_is_presence(event))\n",
        new="",
        why="the filter is thought to be for events",
        checkers=("FilterHolds",),
    ),
    Mutant(
        name="updates shared across filters",
        target=f"{_FEED}._next_update",
        old="key = (self._told, log.offset, self._body_key)",
        new="key = (self._told, log.offset, self._encoding)",
        why="observers at the same offset are thought to see the same",
        checkers=("FilterHolds", "FeedContinuity", "PositionValid", "TextAtVersion"),
    ),
    Mutant(
        name="another principal's sessions shown",
        target=f"{_REGISTRY}.visible",
        old="        and held.session.principal == observer.principal\n",
        new="",
        why="a token that may observe may observe all",
        checkers=("Isolation",),
    ),
    Mutant(
        name="asks again as fast as it can",
        target=f"{_CLIENT}._ask_anew",
        old="if now < due:",
        new="if False:",
        why="a feed that broke should be whole again soon",
        checkers=("AskedSlowly",),
    ),
    # What is stored.
    Mutant(
        name="durable before the batch is stored",
        target=f"{_STORAGE}.save",
        old="    engine.append(session_id, epoch, batch, done)\n",
        new="    session.journal_done()\n"
        "    engine.append(session_id, epoch, batch, lambda error: None if error is None else done(error))\n",
        why="what was handed over will be stored",
        checkers=("Durable",),
    ),
    Mutant(
        name="a batch ends one too far",
        target=f"{_SERVER}.take_journal",
        old="stop=stop, entries=entries)",
        new="stop=stop + 1, entries=entries)",
        why="the next number is taken for the last one",
        checkers=("NoHole",),
    ),
    Mutant(
        name="a batch ends one too early",
        target=f"{_SERVER}.take_journal",
        old="stop=stop, entries=entries)",
        new="stop=entries[-1][0] if entries else stop, entries=entries)",
        why="the end of a batch is taken for its last number",
        checkers=("Durable",),
    ),
    Mutant(
        name="a loss is durable from its own number on",
        target=f"{_SERVER}._spoil",
        old="self._keep(min(lost[0][0], self.delivery.expected), Spoilt(documents, lost))",
        new="self._keep(lost[0][0], Spoilt(documents, lost))",
        why="what is lost is thought to be the lowest number that is missing",
        checkers=("Durable",),
    ),
    Mutant(
        name="refusals not journalled",
        target=f"{_SERVER}._kept_of",
        old="return Refused(alias, context.refusals[alias]) if is_news else None",
        new="return None",
        why="nothing of a refused document is to be stored",
        checkers=("CrashOnly", "Converge"),
    ),
    Mutant(
        name="losses not journalled",
        target=f"{_SERVER}._spoil",
        old="Spoilt(documents, lost))",
        new="None)",
        why="what is lost is not there to be journalled",
        checkers=("CrashOnly", "TextAtVersion", "Converge", "LossTold"),
    ),
    Mutant(
        name="evicted events leave documents trusted",
        target=f"{_SERVER}._apply",
        old="Spoilt(documents))",
        new="None)",
        why="a SKIP has no number",
        checkers=("CrashOnly", "TextAtVersion", "Converge"),
    ),
    Mutant(
        name="snapshot before its batch",
        target=f"{_STORAGE}.save",
        old="    is_appending = True\n",
        new="    is_appending = True\n"
        "    if self._engine.is_snapshot_due(session.session_id):\n"
        "        self._engine.snapshot(session.session_id, session.epoch, session.stored_state(),"
        " self._snapshot_done)\n",
        why="first what is there, then what is new",
        checkers=("CrashOnly", "Quiet", "Converge"),
    ),
    Mutant(
        name="snapshot without stale marks",
        target=f"{_DOCUMENT}.state",
        old="stale_reason=self.stale_reason if self.is_stale else None,",
        new="",
        why="a text is a text",
        checkers=("CrashOnly",),
    ),
    Mutant(
        name="snapshot without refusals",
        target=f"{_CONTEXT}.state",
        old="refused=tuple((alias, str(code)) for alias, code in self._refused.items()),",
        new="",
        why="what is not open is not stored",
        checkers=("CrashOnly",),
    ),
    Mutant(
        name="snapshot without a text under way",
        target=f"{_DOCUMENT}.state",
        old="        transfer=None\n        if transfer is None\n"
        "        else TransferState(transfer.announced, transfer.part_count, transfer.text()),\n",
        new="",
        why="what is not complete is not stored",
        checkers=("CrashOnly", "Accepted"),
    ),
    Mutant(
        name="snapshot without losses",
        target=f"{_SERVER}.stored_state",
        old="lost=self.delivery.given_up_ranges",
        new="lost=()",
        why="they were told",
        checkers=("CrashOnly", "LossTold"),
    ),
    Mutant(
        name="WELCOME before its record is stored",
        target=f"{_STORAGE}._store_record",
        old="    self._engine.fence(record, stored)\n",
        new="    self._engine.fence(record, lambda error: None if error is None else stored(error))\n"
        "    done(None)\n",
        why="the record is on its way, and the client waits",
        checkers=("Resumes", "Monotone", "SingleWriter", "SecretHolds", "Quiet"),
    ),
    Mutant(
        name="attempt not stored",
        target=f"{_HELD}.record",
        old="attempt=session.attempt,",
        new="",
        why="connections end with the server",
        checkers=("SingleWriter",),
    ),
    Mutant(
        name="lease not stored",
        target=f"{_HELD}.record",
        old="lease=lease,",
        new="",
        why="connections end with the server",
        checkers=("Monotone",),
    ),
    Mutant(
        name="secrets not stored again",
        target=f"{_HELD}.record",
        old="confirmed=secrets.confirmed,\n        pending=secrets.pending,\n",
        new="",
        why="the record is thought to be there from the first handshake",
        checkers=("Resumes", "SecretHolds"),
    ),
    Mutant(
        name="the end of a secret not stored",
        target=f"{_CONNECTION}.read_done",
        old="        self._hub.storage.note_confirmed(held)\n",
        new="",
        why="the next record will say so",
        checkers=("SecretHolds", "NoInvention", "Resumes"),
    ),
    Mutant(
        name="the owner confirms the claimant's secret",
        target=f"{_HANDSHAKES}._resume",
        old="    secret = self._hub.new_id()\n",
        new="    secret = self._hub.new_id()\n    held.secrets.issue(secret)\n    held.secrets.confirm()\n",
        why="who has the old secret will have the new one",
        checkers=("Resumes", "SecretHolds", "Converge"),
    ),
    Mutant(
        name="a session that is not stored stays",
        target=f"{_HUB}._unsaved",
        old="    self._expire(held, self.now)\n",
        new="",
        why="the client will come back to it",
        checkers=("Durable", "Converge", "CrashOnly"),
    ),
    Mutant(
        name="a session whose claim is not stored stays",
        target=f"{_STORAGE}._store_record",
        old="        if error is not None and not error.is_fatal:\n",
        new="        if False:\n",
        why="the client is told to try again",
        checkers=("Converge",),
    ),
    Mutant(
        name="sessions that come back are not shown",
        target=f"{_STORAGE}._restored",
        old="    self._on_recalled(session, now)\n",
        new="",
        why="it is no new session",
        checkers=("Converge",),
    ),
    Mutant(
        name="damaged session goes on in its epoch",
        target=f"{_HANDSHAKES}._open",
        old="epoch=hub.new_id(),",
        new="epoch=hub.new_id() if damaged is None else damaged.epoch,",
        why="what is left of it is better than nothing",
        checkers=("EpochHonest",),
    ),
    Mutant(
        name="restored told once",
        target=f"{_SERVER}.resume",
        old="    return Resumption(\n        restored=self._is_restored,\n",
        new="    was_restored, self._is_restored = self._is_restored, False\n"
        "    return Resumption(\n        restored=was_restored,\n",
        why="it was said",
        checkers=("RestoredTold",),
    ),
    Mutant(
        name="refusals not told again",
        target=f"{_SERVER}.resume",
        old="        self._replies.extend(self._context.refusals_again())\n",
        new="",
        why="the client was told",
        checkers=("Converge",),
    ),
    Mutant(
        name="server goes on with its own numbers",
        target=f"{_SERVER}.resume",
        old="        delivery.restart_sending(resume.expects)\n",
        new="",
        why="numbers begin at 1, and the client knows that it was restored",
        checkers=("SameBytes", "SendOrder", "Quiet", "Converge", "GapClosed"),
    ),
    Mutant(
        name="no subscription to a restored session",
        target=f"{_CLIENT}._continue",
        old="    if welcome.restored:\n        self._subscribe_anew(now)\n",
        new="",
        why="the epoch is the same",
        checkers=("Converge",),
    ),
    Mutant(
        name="what a dead server sent is kept",
        target=f"{_CLIENT}._continue",
        old="    if welcome.restored:\n        delivery.restart_receiving(delivery.expected)\n",
        new="",
        why="the epoch is the same",
        checkers=("FeedContinuity", "FeedOrder", "GapClosed", "Resumes"),
    ),
    Mutant(
        name="what was safe is not missed",
        target=f"{_CLIENT}._continue",
        old="not delivery.can_resume_sending(welcome.expects) or ",
        new="",
        why="a server knows what it has",
        checkers=("EpochHonest", "SkipHonest"),
    ),
    Mutant(
        name="what was given up is forgotten when received",
        target=f"{_DELIVERY}._evict",
        old="    self._evicted.update(chosen)\n",
        new="    chosen = {number: chosen[number] for start, stop in gone for number in range(start, stop)}\n"
        "    self._evicted.update(chosen)\n",
        why="what has arrived is thought to be there",
        checkers=("SkipHonest",),
    ),
)
"""Every mutant."""

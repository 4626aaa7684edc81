"""vLLM's scheduler, simulated: requests in, latencies out.

Continuous batching with chunked prefill: a step has every decoding sequence and, first come first
served, as many tokens of waiting prompts as the token budget leaves. Between two events (arrival,
end of an answer, a full KV cache) all sequences advance alike, so their steps are added up at once.
Where the KV cache is full, the sequence that came last is preempted and computed again. A shared
prefix is read from the cache by every request but the first.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from whet.predict.performance.step import StepModel

_EPSILON = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Tokens of a prompt and of its answer; ``shared`` of the prompt's begin prefix ``prefix``.

    ``cached`` of them begin an earlier request of the same traffic and are taken to be in the cache
    still; unlike ``shared``, they are counted in the memory of each request.
    """

    prompt: int
    output: int
    arrival_s: float = 0.0
    shared: int = 0
    prefix: int = 0
    cached: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The engine's: tokens a step, sequences, tokens of KV cache, whether prefixes are cached.

    ``front_share`` of the front end's work remains with several front ends, or a faster one.
    With ``ahead`` the host prepares a step while the device computes another. A step of more than
    ``graph_tokens`` on one rank runs outside of CUDA graphs.
    """

    batched_tokens: int
    max_seqs: int
    kv_tokens: int
    prefix_cache: bool = True
    front_share: float = 1.0
    ahead: bool = True
    graph_tokens: int = 0


@dataclass(slots=True)
class Timed:
    """One request's times in seconds since the start."""

    request: Request
    sent_s: float
    first_s: float = math.nan
    end_s: float = math.nan

    @property
    def ttft_s(self) -> float:
        """To the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """For each token after the first; nan for an answer of one."""
        rest = self.request.output - 1
        return (self.end_s - self.first_s) / rest if rest else math.nan

    @property
    def e2e_s(self) -> float:
        """To the last token."""
        return self.end_s - self.sent_s


@dataclass(slots=True)
class Simulated:
    """Times of all requests; the largest KV usage in tokens, the steps and preemptions."""

    requests: list[Timed]
    peak_tokens: float = 0.0
    steps: int = 0
    preemptions: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Sequence:
    """A request in the engine: ``left`` prompt tokens to compute, ``done`` those computed.

    ``due_s`` is when it leaves the front end. While it decodes, ``begin`` is the progress at which
    it had answered nothing, and ``share`` its part of the engine's ``base``.
    """

    timed: Timed
    left: int
    due_s: float
    order: int
    done: int = 0
    answered: float = 0.0
    begin: float = 0.0
    share: float = 0.0
    running: bool = False


def simulate(
    requests: Sequence[Request], model: StepModel, limits: Limits, *, in_flight: int | None = None
) -> Simulated:
    """Simulate all requests: by their arrivals, or ``in_flight`` at a time where it is given."""
    return _Engine(requests, model, limits, in_flight).run()


class _Engine:
    def __init__(
        self, requests: Sequence[Request], model: StepModel, limits: Limits, in_flight: int | None
    ) -> None:
        self.model, self.limits = model, limits
        self.request_s = model.request_s * limits.front_share
        self.message_s = model.message_s * limits.front_share
        self.now = 0.0  # when the next step is scheduled
        self.device_s = 0.0  # when the device has computed the last one
        self.progress = 0.0  # tokens that a sequence has decoded which ran from the start
        self.pending = deque(requests)
        self.closed = in_flight is not None
        self.waiting: deque[_Sequence] = deque()
        self.prefilling: deque[_Sequence] = deque()
        self.ends: list[tuple[float, int, _Sequence]] = []
        self.decoding = 0
        self.base = 0.0  # Σ context − progress over the decoding sequences
        self.shared_reads = 0.0  # Σ shared tokens over the decoding sequences
        self.held = 0.0  # tokens of KV cache that prompts in work hold
        self.prefixes: dict[int, int] = {}
        self.order = 0
        self.free_s = 0.0  # when the front end is free
        self.arrivals: list[_Sequence] = []  # the last that were sent at one time
        self.out = Simulated(requests=[])
        for _ in range(in_flight or 0):
            self._send(0.0)

    def run(self) -> Simulated:
        while True:
            while not self.closed and self.pending and self._reached(self.pending[0].arrival_s):
                self._send(self.pending[0].arrival_s)
            self._admit()
            if self.prefilling:
                self._mixed_step()
            elif self.decoding:
                self._decode()
            elif self.waiting or self.pending:
                self.now = max(self.now, self._next_s())
            else:
                break
        self.out.seconds = self.device_s
        return self.out

    def _send(self, now: float) -> None:
        """Take the next request, sent now, through the front end into the queue."""
        if not self.pending:
            return
        request = self.pending.popleft()
        timed = Timed(request=request, sent_s=now)
        self.out.requests.append(timed)
        self.free_s = max(now, self.free_s) + self.request_s
        self.order += 1
        if not self.arrivals or self.arrivals[-1].timed.sent_s != now:
            self.arrivals.clear()
        self.arrivals.append(_Sequence(timed, request.prompt, self.free_s, self.order))
        self.waiting.append(self.arrivals[-1])
        for each in self.arrivals:  # those that arrive together take turns, and end together
            each.due_s = self.free_s + self.model.turns * self.decoding * self.message_s

    def _reached(self, time_s: float) -> bool:
        return time_s <= self.now + _EPSILON

    def _next_s(self) -> float:
        """When the next request reaches the engine."""
        times = [self.waiting[0].due_s] if self.waiting else []
        if not self.closed and self.pending:
            times.append(self.pending[0].arrival_s)
        return min(times, default=math.inf)

    def _context(self) -> float:
        return self.base + self.decoding * self.progress

    def _used(self) -> float:
        shared = sum(self.prefixes.values()) if self.limits.prefix_cache else 0
        return self._context() + self.held + shared

    def _admit(self) -> None:
        seats = self.limits.max_seqs - self.decoding - len(self.prefilling)
        while seats > 0 and self.waiting and self._reached(self.waiting[0].due_s):
            sequence = self.waiting[0]
            request = sequence.timed.request
            cached = self.prefixes.get(request.prefix, 0) if self.limits.prefix_cache else 0
            hit = max(min(cached, request.shared), request.cached * self.limits.prefix_cache)
            new = sequence.left - hit if sequence.done == 0 else sequence.left
            busy = self.decoding + len(self.prefilling)
            if self._used() + new > self.limits.kv_tokens and busy:
                return
            self.waiting.popleft()
            if sequence.done == 0:
                sequence.done, sequence.left = hit, new
            self.held += new
            self.prefilling.append(sequence)
            seats -= 1

    def _mixed_step(self) -> None:
        budget = max(self.limits.batched_tokens - self.decoding * self.model.rows, 1)
        tokens, pairs, ended = 0, 0.0, []
        while self.prefilling and tokens < budget:
            sequence = self.prefilling[0]
            chunk = min(sequence.left, budget - tokens)
            pairs += chunk * (sequence.done + chunk / 2)
            tokens += chunk
            sequence.left -= chunk
            sequence.done += chunk
            if sequence.left:
                break
            ended.append(self.prefilling.popleft())
        longest = self.model.tokens(self.decoding, tokens, len(ended))
        graph = longest <= self.limits.graph_tokens
        step_s = self.model.seconds(
            self.decoding, self._read(), tokens, pairs, len(ended), padded=graph
        )
        self._compute(1, step_s, self.model.prefill_s + (0.0 if graph else self.model.launch_s))
        self.out.steps += 1
        if self.decoding:
            self.progress += self.model.advance
        self._answer(1, self.decoding + len(ended))
        for sequence in ended:
            self._start(sequence)
        self._finish()

    def _compute(self, steps: int, step_s: float, host_s: float) -> None:
        """Let host and device work on ``steps`` equal steps; the next one is scheduled after."""
        ready_s = self.now + host_s
        before_s = self.device_s
        one_s = max(step_s, host_s) if self.limits.ahead else step_s + host_s
        self.device_s = max(before_s, ready_s) + step_s + (steps - 1) * one_s
        if not self.limits.ahead:
            self.now = self.device_s
        elif steps > 1:
            self.now = self.device_s - step_s
        else:
            self.now = max(ready_s, before_s)

    def _answer(self, steps: int, messages: int) -> None:
        """Give the front end the messages of each of ``steps`` steps that end now."""
        work_s = messages * self.message_s
        self.free_s = max(self.free_s + steps * work_s, self.device_s + work_s)

    def _read(self) -> float:
        """Tokens of KV cache that a step reads: a shared prefix once for each sequence."""
        return self._context() + self.shared_reads

    def _start(self, sequence: _Sequence) -> None:
        """A prompt is computed: its first token is out, and it decodes from now on."""
        timed, request = sequence.timed, sequence.timed.request
        own = float(sequence.done)
        if math.isnan(timed.first_s):
            timed.first_s = max(self.device_s, self.free_s)
            sequence.answered = 1.0
            own += 1
        if self.limits.prefix_cache:
            self.prefixes.setdefault(request.prefix, request.shared)
            own -= request.shared
        self.held = max(self.held - own, 0.0) if self.prefilling else 0.0
        if sequence.answered >= request.output:
            self._end(sequence)
            return
        sequence.share, sequence.begin = own - self.progress, self.progress - sequence.answered
        sequence.running = True
        self._count(sequence, 1)
        heapq.heappush(self.ends, (sequence.begin + request.output, sequence.order, sequence))

    def _count(self, sequence: _Sequence, sign: int) -> None:
        """Add a sequence to those that decode, or take it out."""
        self.decoding += sign
        self.base += sign * sequence.share
        if self.limits.prefix_cache:
            self.shared_reads += sign * sequence.timed.request.shared

    def _end(self, sequence: _Sequence) -> None:
        sequence.timed.end_s = max(self.device_s, self.free_s)
        sequence.running = False
        if self.closed:
            self._send(sequence.timed.end_s)

    def _finish(self) -> None:
        while self.ends and self.ends[0][0] <= self.progress + _EPSILON:
            _, _, sequence = heapq.heappop(self.ends)
            if sequence.running:
                self._count(sequence, -1)
                self._end(sequence)
        self.out.peak_tokens = max(self.out.peak_tokens, self._used())

    def _decode(self) -> None:
        """As many steps as there are until the next event."""
        advance = self.model.advance
        while self.ends and not self.ends[0][2].running:
            heapq.heappop(self.ends)
        steps = max(math.ceil((self.ends[0][0] - self.progress) / advance - _EPSILON), 1)
        room = self.limits.kv_tokens - self._used()
        if room < self.decoding * advance and self.decoding > 1:
            self._preempt()
            return
        if self.decoding > 1:
            steps = max(min(steps, int(room / (self.decoding * advance))), 1)
        read = self._read()
        step_s, host_s = self.model.seconds(self.decoding, read), self.model.host_s
        if (next_s := self._next_s()) < math.inf:
            steps = max(min(steps, math.ceil((next_s - self.now) / max(step_s, host_s))), 1)
        if growth := self.decoding * advance * (steps - 1) / 2:
            step_s = self.model.seconds(self.decoding, read + growth)
        self._compute(steps, step_s, host_s)
        self.progress += steps * advance
        self.out.steps += steps
        self._answer(steps, self.decoding)
        self._finish()

    def _preempt(self) -> None:
        """The sequence that came last loses its cache and is computed again, answer included."""
        last = max((each for each in self.ends if each[2].running), key=lambda each: each[1])[2]
        self._count(last, -1)
        last.running = False
        last.answered = self.progress - last.begin
        last.left, last.done = last.timed.request.prompt + int(last.answered), 0
        last.due_s = self.now
        self.out.preemptions += 1
        self.waiting.appendleft(last)

"""Select: the language model's ``LogitsProcessor`` chooses layers where it would apply the head.

``_apply_head`` gets packed rows and returns this rank's local logits of the selected layers; the
stock code around it then gathers, trims, caps and scales as ever
(``model_executor/layers/logits_processor.py``).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from confident_decoding import planner, scan, stats
from confident_decoding.config import SelectionPlan
from confident_decoding.depthwise import select_depthwise
from confident_decoding.kernels import operations, statistics_of_finished
from confident_decoding.model_head import ModelHead, RmsNorm, Selection
from confident_decoding.plugin.request_rows import RequestRows
from confident_decoding.plugin.rows import Rows
from confident_decoding.plugin.vocabulary import AfterLogits, finished, plain_weight, statistics
from confident_decoding.replay import ReplayedScans
from confident_decoding.selection import RowRules, hashed_draws

logger = logging.getLogger("vllm.confident_decoding")
COUNTERS = "confident_decoding_counters"
Choose = Callable[[SelectionPlan, RowRules, bool], Selection]
"""``(plan, rules, with final entropies)`` to what was chosen."""


class Recorder(Protocol):
    """Selects in the head's place, and keeps what every candidate is (`analysis.recorder`)."""

    def wants(self, rows: Rows | None) -> bool:
        """Whether it takes calls of such rows."""
        ...

    def select(
        self,
        packed: Tensor,
        model_head: ModelHead,
        finish: Callable[[Tensor], Tensor],
        plan: SelectionPlan,
        rules: RowRules,
        with_final_entropies: bool,
    ) -> Selection:
        """As `scan.select`; ``finish`` gives what sampling starts from, ``[m, V]`` of the head's logits."""
        ...


class SelectingHead:
    """Stands in for ``LogitsProcessor._apply_head`` of one model instance.

    Attributes:
        requests: The requests with settings of their own, whose rules its sampled rows follow.
        rows: Which rows the present call of ``compute_logits`` is about; None outside of such calls.
        serving: Whether warm-up is over.
        stock_calls: Calls with plain rows (the startup proof counts them).
        recorder: Selects in its place, or None.
        mirror: Where the counters are to appear on the host (`metrics.publish`), or None.
        metrics: See Args.

    Args:
        processor: The language model's ``LogitsProcessor``; its own ``_apply_head`` is kept.
        final_state: Residual states ``[m, H]`` to what the head is applied to; the final norm, mostly.
        fused_norm: The norm that ``final_state`` is, where kernels may compute it, else None (`anatomy`).
        norm_weights: What ``final_state`` reads.
        after_logits: What the model does to logits after ``processor`` (`families.Quirks`).
        batch_invariant: Whether a row's result must not depend on the batch (``VLLM_BATCH_INVARIANT``).
        graphs: Whether scans may be CUDA graphs.
        hidden: H.
        plan: What to select.
        seed: The engine's seed, for mixing.
        select_method: As the user wrote it, for the log line.
        log_interval: Steps between log lines; 0 = never.
        metrics: Whether metrics are on: ranks then also exchange which ids have the largest logits.
        reports: Whether this rank counts and logs.
    """

    def __init__(
        self,
        processor: Any,
        final_state: Callable[[Tensor], Tensor],
        *,
        fused_norm: Callable[[], RmsNorm | None] = lambda: None,
        norm_weights: Callable[[], Iterable[Tensor]] = tuple,
        after_logits: AfterLogits | None = None,
        batch_invariant: bool = False,
        graphs: bool = False,
        hidden: int,
        plan: SelectionPlan,
        seed: int,
        select_method: str,
        log_interval: int,
        reports: bool,
        metrics: bool = False,
    ) -> None:
        self._processor, self._stock = processor, processor._apply_head
        self._final_state, self._fused_norm, self._after_logits = final_state, fused_norm, after_logits
        self._norm_weights = norm_weights
        self._batch_invariant, self._graphs = batch_invariant, graphs
        self._replays: ReplayedScans | None = None
        self._hidden, self._plan, self._seed = hidden, plan, seed
        self._log_interval, self._reports = log_interval, reports
        self.metrics = metrics
        self.mirror: Tensor | None = None
        self._calls = self._step = 0
        self.requests = RequestRows(plan, select_method, seed)
        self._warm = False
        self._lines = stats.LogLines(plan, select_method)
        self.rows: Rows | None = None
        self.serving = False
        self.stock_calls = 0
        self.recorder: Recorder | None = None

    @property
    def plan(self) -> SelectionPlan:
        """What this head selects."""
        return self._plan

    def __call__(self, lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None) -> Tensor:
        """Local logits ``[B, V/tp]`` of packed rows ``[B, n*H]``, or stock logits of plain ``[B, H]`` rows."""
        width, n = hidden_states.shape[-1], len(self._plan.depths)
        if width == self._hidden and (n > 1 or self.rows is None):
            self.stock_calls += 1
            return self._stock(lm_head, hidden_states, embedding_bias)
        if width != n * self._hidden:
            raise RuntimeError(
                f"confident-decoding: rows of width {width} reached the output head; expected {self._hidden} (plain) "
                f"or {n * self._hidden} (packed, {n} states)."
            )
        model_head = self._model_head(lm_head, hidden_states, embedding_bias)
        if self.rows == "warmup" and not self._warm and hidden_states.is_cuda:
            self._warm_up(hidden_states, model_head)
        if self.recorder is not None and self.recorder.wants(self.rows):
            finish = partial(finished, self._processor, lm_head, after_logits=self._after_logits)
            return self._select(
                hidden_states, self.rows, partial(self.recorder.select, hidden_states, model_head, finish)
            )
        replays = self._replays if self.rows == "sampled" else None
        return self._select(
            hidden_states,
            self.rows,
            lambda plan, rules, due: scan.select(hidden_states, plan, model_head, rules, due, replays),
        )

    def _model_head(self, lm_head: Any, packed: Tensor, bias: Tensor | None) -> ModelHead:
        device, columns = packed.device, lm_head.num_embeddings_per_partition
        # One path whose result does not depend on B: the model's own calls, all candidates at once.
        own = self._batch_invariant and device.type != "cpu"
        weight = None if own else plain_weight(self._processor, lm_head, packed.dtype, bias)
        return ModelHead(
            norm=self._final_state,
            project=lambda states: self._stock(lm_head, states, bias),
            statistics=partial(
                statistics, self._processor, lm_head, after_logits=self._after_logits, top_ids=self.metrics
            ),
            columns=columns,
            rows_per_read=planner.rows_per_read(device, self._hidden, columns, packed.dtype, weight is not None),
            counts_on_host=device.type == "cpu",
            weight=weight,
            fused_norm=None if own else self._fused_norm(),
            top_ids=self.metrics,
            reads=(*self._norm_weights(), *([] if weight is None else [weight])),
        )

    def _warm_up(self, packed: Tensor, model_head: ModelHead) -> None:
        """Compile every kernel and make the graphs now, while vLLM measures its memory, and none while it serves."""
        self._warm = True
        transient = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        scan.warm_up(self._plan, model_head, packed[:1], self._warm_up_counting)
        if self._graphs and packed.dtype.itemsize == 2:
            self._replays = scan.replayed(self._plan, model_head, len(packed), packed.shape[1], packed.dtype)
            # What the graphs keep must fit beside the peak of the forward, which came before them: let that be seen.
            torch.empty(max(0, transient), dtype=torch.uint8, device=packed.device)

    def _warm_up_counting(self, selection: Selection, rules: RowRules) -> None:
        if self._counts:
            counters = torch.zeros_like(self._processor.get_buffer(COUNTERS))
            mirror = None if self.mirror is None else torch.zeros_like(self.mirror).pin_memory()
            for plan in {self._plan, replace(self._plan, p=1.0)}:
                self._count(counters, mirror, selection, rules, plan, prompt=False)

    def packed(self, states: Tensor) -> bool:
        """Whether rows are packed, ``[B, n*H]``."""
        return states.shape[-1] == len(self._plan.depths) * self._hidden

    def select_by_calls(self, packed: Tensor, logits_of: Callable[[Tensor], Tensor], rows: Rows) -> Tensor:
        """Logits ``[B, V]`` of the selected layers, from finished logits of ``[B, H]`` rows: a head under LoRA."""
        finished = partial(statistics_of_finished, first_id=0 if self.metrics else None)
        columns = self._processor.org_vocab_size
        model_head = ModelHead(self._final_state, logits_of, finished, columns, top_ids=self.metrics)
        return self._select(
            packed, rows, lambda plan, rules, due: select_depthwise(packed, plan, model_head, rules, due)
        )

    def _select(self, packed: Tensor, rows: Rows | None, choose: Choose) -> Tensor:
        """Draw, choose, count and log; returns the chosen logits."""
        # Whether a step is logged must not depend on the rank: the entropies are gathered.
        step = self._step + 1 if rows == "sampled" and len(packed) else 0
        due = bool(step and self._log_interval and step % self._log_interval == 0)
        plan = self._plan
        rules = self.requests.rules(len(packed), packed.device) if rows == "sampled" and len(packed) else None
        if rules is not None:
            # Which rows stay at the final layer is in the rules, also on a server whose p is 0.
            plan = replace(plan, p=1.0)
        else:
            rules = RowRules.of(plan, self._draws(packed))
        selection = choose(plan, rules, due)
        if step:
            self._step, self.serving = step, True
        if self._counts and rows in ("sampled", "prompt"):
            counters = self._processor.get_buffer(COUNTERS)
            self._count(counters, self.mirror, selection, rules, plan, prompt=rows == "prompt")
            if due and selection.final_entropies is not None:
                self._lines.take(self._step, counters, selection.depths, selection.final_entropies)
            for line in self._lines.arrived():
                logger.info(line)
        return selection.logits

    @property
    def _counts(self) -> bool:
        return self._reports and (self._log_interval > 0 or (self.metrics and self.mirror is not None))

    def _count(
        self,
        counters: Tensor,
        mirror: Tensor | None,
        selection: Selection,
        rules: RowRules,
        plan: SelectionPlan,
        *,
        prompt: bool,
    ) -> None:
        window: int | None = plan.window
        if not self.metrics or plan.p == 0:  # nobody asks, or what the scan has found is discarded
            selection = replace(selection, entropies=None)
        elif plan.fixed_depth is not None:
            window = None
        elif selection.kept_back is not None:
            counters[int(prompt), -1] += selection.kept_back.sum()
        mirror = mirror if self.metrics else None
        operations(counters.device).count(counters, mirror, prompt, selection, rules, window)

    def _draws(self, packed: Tensor) -> Tensor | None:
        if not 0 < self._plan.p < 1:
            return None
        self._calls += 1
        rows = torch.arange(len(packed), device=packed.device)
        return hashed_draws(rows, self._seed, self._calls)

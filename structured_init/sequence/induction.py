"""Induction: a previous-token head, and a head of the next layer that continues what was seen before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import attention_positions
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.sequence.asked import find_towers, heads_of, prepare_each
from structured_init.sequence.layer import Layer
from structured_init.sequence.matching import MatchingHeads, draw_beside, draw_copies, measure_balance
from structured_init.sequence.previous_token import PreviousToken
from structured_init.util.arguments import check_positive, check_share, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

COPIES = 1.5  # s over the root mean square of the stream: as large as it, where a head looks
LONGEST = 512  # tokens for which it is solved, unless asked otherwise
COPIED, MATCHED = "PreviousToken: value_output", "Induction: match and pass on"  # who writes values and outputs


@dataclass(eq=False, repr=False)
class Induction(Initializer):
    """The circuit that continues a sequence as it went on before: … A B … A → B.

    A head of the first layer looks at the token before (:class:`PreviousToken`) and copies what it holds into a
    subspace of its own: W_v = V (D, k), W_o = s Oᵀ. A head of the second layer holds the present token against those
    copies, W_q = m V R and W_k = m O R, so that each token looks at those that followed its equals, and passes what
    they hold on: W_v = U, W_o = s Uᵀ, which an output tied to the embeddings soon learns to read. Added positions leave
    V and O to tokens, R keeps out what all tokens have in common, and m is searched on the second layer's call.

    Where the share cannot be had with what the first layer's other heads and the MLP behind them add as the host built
    them, their last matrices are scaled down: to no more than the stream, or to 0.3, 0.1, …, 0.01 of that.

    Args:
        share: of attention, between 0 and 1, that the first head puts on the token before, and the second one in a
            random sequence that comes twice on what followed; the least strength that gives it is taken.
        context: tokens of the texts on which it is searched; ``None``: the host's longest context, at most 512.
        causal: as in ``PreviousToken``.
        where: which attention layers, by name: the first two of every tower among them are used.

    Raises:
        StructuredInitError: at :meth:`plan`, a host with fewer than two layers of attention, or one that looks both
            ways; a model that cannot be run; and as in ``PreviousToken``.

    Example:
        >>> report = initialize(model, Induction(), seed=0)
        >>> report.notes["h.1.attn"]
        'attention on what followed an equal token: head 1: 0.86 at 64 tokens, measured on …'

    Source: ours; constructions and measurements in ``docs/previous_token.md``; the circuit is Olsson et al. 2022's.
    """

    share: float = 0.9
    context: int | None = None
    causal: bool | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_positive("Induction", share=self.share)
        check_share("Induction", share=self.share)
        check_whole("Induction", least=4, null=True, context=self.context)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        towers = [tower[:2] for tower in find_towers("Induction", weights, self.where)]
        pairs = prepare_each("Induction", weights, towers, lambda sites: self._ask_layers(sites, weights, rng))
        for first, second in weights.each(pairs):
            write_circuit(first, second)

    def _ask_layers(self, sites: list[AttentionSite], weights: Weights, rng: Draws) -> tuple[Layer, Layer]:
        if len(sites) < 2:
            raise StructuredInitError(
                f"'{sites[0].name}' is the only attention layer of its stack: an induction circuit takes two"
            )
        site, after = sites
        before = PreviousToken([1], self.share, self.context or LONGEST, self.causal)
        first = before.ask_layer(site, weights, rng, twice=True)
        if not first.causal:
            raise StructuredInitError(
                f"'{site.name}' is not causal, so it predicts no next token: use PreviousToken, or pass"
                " causal=True if it is"
            )
        # The last head matches: the first ones may share a table with those of the first layer.
        second = replace(
            first,
            site=after.by(MATCHED),
            positions=attention_positions(after, weights),
            looking={after.num_heads - 1: (0, 1)},
        )
        return first, second


def write_circuit(first: Layer, second: Layer) -> None:
    """Write a head into each of two layers and the balance between them, and report them."""
    width = first.site.value.shape[-1]
    looking = heads_of(replace(first, spare=(2 * width, width)))
    looking.search()
    reads, writes = draw_copies(first.site.embed_dim, width, looking.free, generator=first.draw("subspaces"))
    looking.write_values(reads, 0 * writes, COPIED)
    balance = measure_balance(looking, second.site)
    size = COPIES * balance.stream  # with the size of the stream a copy is as large, where it is, as the stream is
    looking.write_values(reads, size * writes, COPIED)
    matching = MatchingHeads(second, (reads, writes), balance)
    matching.search()
    [head] = second.looking
    passed = draw_beside(writes, second.site.value.shape[-1], generator=second.draw(f"passed {head}"))
    matching.write_values(passed, size * passed, MATCHED)
    looking.report(balance.describe())
    matching.report()

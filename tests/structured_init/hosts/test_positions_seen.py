"""A learned table of any name that is added to the tokens, found by the forward pass that finds attention."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from structured_init import (
    Compose,
    Conditioned,
    Impulse,
    Mimetic,
    Positions,
    PreviousToken,
    SamePositions,
    Skipless,
    StructuredInitError,
    TokenLayout,
    UniformProjections,
    attention_sites,
    initialize,
    position_sites,
    preset,
    register_positions,
)
from structured_init.attention.positions import NO_GRID, sincos_2d
from structured_init.hosts.attention_positions import attention_positions
from structured_init.overlay import Weights

DIM, SIDE = 16, 4


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.back = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (2, -1)).transpose(1, 2) for m in (self.to_q, self.to_k, self.to_v))
        out = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.back(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.mix = nn.LayerNorm(DIM), Attend()

    def forward(self, x):
        return x + self.mix(self.one(x))


class Foreign(nn.Module):
    """A ViT by hand; ``where`` its table is added and what stands before the patches vary."""

    def __init__(self, table=(1, SIDE**2, DIM), leading=0, late=0, patch="conv"):
        super().__init__()
        self.stem = nn.Conv2d(3, DIM, 2, 2) if patch == "conv" else nn.Linear(12, DIM)
        self.kringle = nn.Parameter(0.02 * torch.randn(table))
        self.lead = nn.Parameter(torch.randn(1, leading, DIM)) if leading else None
        self.late = nn.Parameter(torch.randn(late, DIM)) if late else None
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(DIM, 5)

    def tokens(self, x):
        if isinstance(self.stem, nn.Conv2d):
            return self.stem(x).flatten(2).mT
        return self.stem(x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))

    def forward(self, x):
        x = self.tokens(x)
        if self.lead is not None:
            x = torch.cat([self.lead.expand(len(x), -1, -1), x], 1)
        x = x + self.kringle
        if self.late is not None:
            x = torch.cat([self.late.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def images(batch=2, side=2 * SIDE):
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


CASES = {
    "odd name": ({}, 0, 0),
    "without an axis for samples": ({"table": (SIDE**2, DIM)}, 0, 0),
    "patches by a linear map": ({"patch": "linear"}, 0, 0),
    "class token and registers in the table": ({"table": (1, 5 + SIDE**2, DIM), "leading": 5}, 5, 5),
    "registers behind the table": ({"late": 3}, 3, 0),
    "both": ({"table": (1, 1 + SIDE**2, DIM), "leading": 1, "late": 4}, 5, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_patches_become_the_positions_of_the_grid_and_all_others_stay(case):
    changes, prefix, first = CASES[case]
    model = Foreign(**changes)
    before = model.kringle.detach().clone().view(-1, DIM)
    report = initialize(model, Mimetic(), seed=0, batch=images())
    after = model.kringle.detach().view(-1, DIM)
    assert torch.equal(after[:first], before[:first])
    assert torch.allclose(after[first:], sincos_2d((SIDE, SIDE), DIM).float())
    weights = Weights(model, batch=images())
    sites = attention_sites(weights)
    assert [(site.grid, site.prefix_tokens) for site in sites] == [((SIDE, SIDE), prefix)] * 2
    behind = {0: "", 3: " behind 3 others", 5: " behind 5 others"}[prefix]
    said = f"seen to be added to the tokens: 16 tokens{behind}, a grid of 4×4"
    doubt = ", a square of that many, rows first; if that is wrong, say so with structured_init.register_positions"
    said += doubt * (changes.get("patch") == "linear")
    assert report.notes["kringle"] == said
    assert report.unset_positions == []


@pytest.mark.parametrize("learned", ["places", "classes", "biases"])
def test_of_tokens_first_a_table_with_an_axis_for_samples_is_seen(learned):
    class TokensFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer = nn.Linear(3, DIM), nn.TransformerEncoderLayer(DIM, 2, 32)
            self.kringle, self.classes = nn.Parameter(torch.randn(7, 1, DIM)), nn.Embedding(2, DIM)
            self.experts, self.biases = (nn.Parameter(torch.randn(2, each, DIM)) for each in (3, 1))

        def forward(self, x):
            if learned == "biases":
                return self.layer(torch.bmm(x, self.experts) + self.biases)
            if learned == "classes":
                return self.layer(self.stem(x) + self.classes(torch.arange(2))[:, None])
            return self.layer(self.stem(x).transpose(0, 1) + self.kringle)

    found = [site.name for site in position_sites(TokensFirst(), batch=torch.randn(2, 7, 3))]
    assert found == ["kringle"] * (learned == "places")


def test_without_a_batch_the_report_says_that_one_would_find_them():
    model = Foreign()
    model.layers = nn.ModuleList(nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True) for _ in range(2))
    report = initialize(model, Mimetic(), seed=0)
    assert report.skipped["positions"].endswith("given a batch, as batch=…, one forward pass finds a learned table")


@pytest.mark.parametrize("control", [False, True])
def test_positions_alone_are_found_and_frozen_too(control):
    model = Foreign()
    alone = Positions(trainable=False)
    initialize(model, SamePositions(Compose([Mimetic(), alone])) if control else alone, batch=images())
    assert torch.allclose(model.kringle[0], sincos_2d((SIDE, SIDE), DIM).float())
    assert not model.kringle.requires_grad


def test_a_table_can_be_looked_at_before():
    model = Foreign()
    assert position_sites(model) == []
    (site,) = position_sites(model, batch=images())
    assert (site.name, site.grid) == ("kringle", (SIDE, SIDE))


def test_an_impulse_finds_the_grid():
    report = initialize(Foreign(), Impulse(), batch=images())
    assert any(entry.names == ("kringle",) and entry.set_by for entry in report.entries)


class Two(Foreign):
    """Two tables of one shape: the second one scales the tokens, or is added as well."""

    def __init__(self, both):
        super().__init__()
        self.krongle, self.both = nn.Parameter(torch.ones(1, SIDE**2, DIM)), both

    def tokens(self, x):
        x = super().tokens(x)
        return x + self.krongle if self.both else x * self.krongle


def test_of_two_tables_the_one_that_is_added_is_taken():
    model = Two(both=False)
    initialize(model, Positions(), batch=images())
    assert torch.equal(model.krongle, torch.ones(1, SIDE**2, DIM))
    assert torch.allclose(model.kringle[0], sincos_2d((SIDE, SIDE), DIM).float())


def test_two_tables_that_are_both_added_are_left_alone():
    with pytest.raises(
        StructuredInitError, match="of the tables that are added to tokens, kringle, krongle, it was not"
    ):
        initialize(Two(both=True), Positions(), batch=images())


@pytest.mark.parametrize(("rows", "columns"), [(2, 4), (2, 8)])
def test_the_grid_is_that_of_the_convolution_that_gives_the_patches(rows, columns):
    model = Foreign(table=(1, rows * columns, DIM))
    report = initialize(model, Positions(), batch=torch.randn(2, 3, 2 * rows, 2 * columns))
    assert torch.allclose(model.kringle[0], sincos_2d((rows, columns), DIM).float())
    assert report.notes["kringle"].endswith(f"a grid of {rows}×{columns}")


class ChannelsFirst(nn.Module):
    def __init__(self, stem, name, shape):
        super().__init__()
        self.stem, self.name, self.layers = stem, name, nn.ModuleList(Block() for _ in range(2))
        self.register_parameter(name, nn.Parameter(0.02 * torch.randn(shape)))
        self.lead = nn.Parameter(torch.randn(1, DIM, 1)) if name == "led" else None

    def forward(self, x):
        x = self.stem(x).relu().flatten(2)
        x = x if self.lead is None else torch.cat([self.lead.expand(len(x), -1, -1), x], 2)
        x = (x + self._parameters[self.name]).mT
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("rows", [2, 4])  # 4×4 patches are as many as channels
@pytest.mark.parametrize(("name", "lead"), [("kringle", 0), ("pos", 0), ("led", 1)])
def test_a_table_whose_channels_come_before_its_tokens_is_written_so(name, lead, rows):
    model = ChannelsFirst(nn.Conv2d(3, DIM, 2, 2), name, (1, DIM, lead + 4 * rows))
    report = initialize(model, Positions(), batch=torch.randn(2, 3, 2 * rows, 8))
    assert torch.allclose(model.get_parameter(name)[0, :, lead:].mT, sincos_2d((rows, 4), DIM).float())
    assert report.notes[name].endswith(f"a grid of {rows}×4")


@pytest.mark.parametrize(("name", "shape"), [("kringle", (DIM, 25)), ("kringle", (1, DIM, DIM)), ("pos", (1, DIM, 25))])
def test_a_table_of_a_series_whose_channels_come_first_is_of_that_width(name, shape):
    model = ChannelsFirst(nn.Conv1d(2, DIM, 4, 4), name, shape)
    found = position_sites(model, batch=torch.randn(2, 2, 4 * shape[-1]))
    found += position_sites(model) if name == "pos" else []  # by its shape, where the pass is not run
    assert {(site.embed_dim, site.num_tokens, site.grid) for site in found} == {(DIM, shape[-1], None)}


def test_a_table_whose_tokens_are_filters_is_as_wide_as_attention():
    class OfFilters(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.kringle, self.layers = nn.Conv1d(3, 8, 1), nn.Parameter(torch.zeros(1, 8, DIM)), Block()

        def forward(self, x):
            return self.layers(self.stem(x) + self.kringle)

    (site,) = position_sites(OfFilters(), batch=torch.randn(2, 3, DIM))
    assert (site.num_tokens, site.embed_dim) == (8, DIM)


def test_a_row_that_is_added_to_the_one_filter_of_a_convolution_does_no_harm():
    class OneFilter(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.shift, self.layer = nn.Conv1d(3, 1, 1), nn.Parameter(torch.zeros(1, 1, DIM)), Block()

        def forward(self, x):
            return self.layer(self.stem(x) + self.shift)

    assert position_sites(OneFilter(), batch=torch.randn(2, 3, DIM)) == []


def test_linear_patches_of_an_image_that_is_not_square_have_the_grid_of_square_ones():
    model = Foreign(table=(1, 8, DIM), patch="linear")
    report = initialize(model, Positions(), batch=torch.randn(2, 3, 4, 8))
    assert "8 tokens, a grid of 2×4, as square patches give, rows first; if that is wrong" in report.notes["kringle"]


class Resized(Foreign):
    """Fits its table to the images whatever their size, as DINO does."""

    def __init__(self, leading):
        super().__init__(table=(1, leading + SIDE**2, DIM), leading=leading)
        self.leading = leading

    def forward(self, x):
        side, x = x.shape[-1] // 2, self.tokens(x)
        table = self.kringle[:, self.leading :].unflatten(1, (SIDE, SIDE)).movedim(-1, 1)
        table = nn.functional.interpolate(table, (side, side), mode="bicubic").flatten(2).mT
        if self.leading:
            x = torch.cat([self.lead.expand(len(x), -1, -1), x], 1)
        x = x + torch.cat([self.kringle[:, : self.leading], table], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("leading", [0, 1])
def test_a_table_that_a_model_resizes_is_found_at_its_own_size_and_named_at_another(leading):
    model = Resized(leading)
    (site,) = position_sites(model, batch=images())
    assert (site.name, site.grid, site.num_tokens) == ("kringle", (SIDE, SIDE), SIDE**2)
    with pytest.raises(StructuredInitError, match="'kringle' is resized before it is added to the tokens: give a b"):
        initialize(model, Positions(), batch=images(side=4 * SIDE))
    assert "'kringle' is resized" in str(initialize(model, Mimetic(), batch=images(side=4 * SIDE)).skipped)


FRAMES = {
    "two views": ((2, 3, 8, 8), lambda x: torch.cat([x, x.flip(-1)])),
    "two crops": ((2, 3, 10, 12), lambda x: torch.cat([x[..., :8, :8], x[..., -8:, -8:]])),
    "an axis of one frame": ((2, 1, 3, 8, 8), lambda x: x[:, 0]),
    "the last frame": ((2, 4, 3, 8, 8), lambda x: x[:, -1]),
    "the last frame, channels last": ((2, 4, 8, 8, 3), lambda x: x[:, -1].movedim(-1, 1)),
    "all frames": ((2, 5, 3, 8, 8), lambda x: x.flatten(0, 1)),
    "resized": ((2, 3, 30, 40), lambda x: nn.functional.interpolate(x, (8, 8))),
    "padded": ((2, 3, 7, 6), lambda x: nn.functional.pad(x, (1, 1, 0, 1))),
}


@pytest.mark.parametrize("case", FRAMES)
def test_linear_patches_of_what_a_model_makes_of_its_images_have_a_grid(case):
    shape, prepare = FRAMES[case]
    model = Foreign(patch="linear")
    tokens = model.tokens
    model.tokens = lambda x: tokens(prepare(x))
    (site,) = position_sites(model, batch=torch.randn(shape))
    assert site.grid == (SIDE, SIDE)


def test_tokens_that_no_square_patches_give_are_positions_without_a_grid():
    model = Foreign(table=(1, 8, DIM), patch="linear")
    model.stem = nn.Linear(24, DIM)
    model.tokens = lambda x: model.stem(x.unfold(2, 2, 2).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 8, 24))
    batch = torch.randn(2, 3, 4, 16)
    with pytest.raises(StructuredInitError, match="'kringle' holds positions of a sequence"):
        initialize(model, Positions(), batch=batch)
    for given in (batch, {"x": batch}):
        assert initialize(model, Mimetic(), batch=given).skipped["kringle"] == NO_GRID.format("sincos")
    with pytest.raises(StructuredInitError, match=r"sees a sequence.*say its grid with structured_init.register_pos"):
        initialize(model, Impulse(solver="separable"), batch=batch)
    model.image_size, model.patch_size = (4, 8), 2
    initialize(model, Positions(), batch=batch)
    assert torch.allclose(model.kringle[0], sincos_2d((2, 4), DIM).float())


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.kringle = nn.Embedding(11, DIM), nn.Parameter(torch.zeros(1, 25, DIM))
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids):
        x = self.words(ids) + self.kringle[:, : ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_table_of_a_text_is_a_sequence_even_of_a_square_number():
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    weights = Weights(Text(), batch=ids)
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.name, site.grid, site.num_tokens) == ("kringle", None, 25)


def test_a_bias_of_every_layer_is_no_position():
    class Biased(Block):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, SIDE**2, DIM))

        def forward(self, x):
            return super().forward(x + self.shift)

    model = Foreign()
    model.layers = nn.ModuleList(Biased() for _ in range(2))
    report = initialize(model, Mimetic(), batch=images())
    assert [entry.names[0] for entry in report.changed if "shift" in entry.names[0]] == []


class Looped(nn.Module):
    """One block that runs several times; rows of its table are looked up from one on."""

    def __init__(self, first):
        super().__init__()
        self.words, self.kringle, self.first = nn.Embedding(11, DIM), nn.Embedding(12, DIM), first
        self.block = Block()

    def forward(self, ids):
        x = self.words(ids) + self.kringle(torch.arange(ids.shape[1]) + self.first)
        for _ in range(3):
            x = self.block(x)
        return x


@pytest.mark.parametrize("first", [0, 2])
def test_rows_that_are_looked_up_in_order_are_positions(first):
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    weights = Weights(Looped(first), batch=ids)
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.name, site.num_tokens) == ("kringle.weight", 12 - first)


def test_rows_that_both_sides_of_a_sum_have_in_order_are_not_told_apart():
    weights = Weights(Looped(0), batch=torch.arange(9)[None])  # words that count as positions do
    assert attention_sites(weights)
    assert not position_sites(weights)


class Pair(nn.Module):
    """An encoder and a decoder in one module, each with a table of its own."""

    def __init__(self, names=("src_pos", "tgt_pos"), swapped=False, early=False):
        super().__init__()
        self.words, self.names, self.swapped, self.early = nn.Embedding(11, DIM), names, swapped, early
        for rows, name in zip((20, 25), names, strict=True):
            setattr(self, name, nn.Embedding(rows, DIM))
        self.enc, self.dec, self.late = (nn.ModuleList(Block() for _ in range(2)) for _ in range(3))

    def forward(self, src, tgt):
        both = list(zip((src, tgt), self.names, ([*self.enc], [*self.dec, *self.late]), strict=True))
        both = both[::-1] if self.swapped else both
        placed = ((self.words(x) + getattr(self, name)(torch.arange(x.shape[1])), layers) for x, name, layers in both)
        for x, layers in list(placed) if self.early else placed:
            for layer in layers:
                x = layer(x)
        return x


@pytest.fixture
def texts():
    return tuple(torch.randint(0, 11, (2, 2, 9), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("names", [("src_pos", "tgt_pos"), ("pos_enc", "pos_dec"), ("pos_src", "pos_enc")])
@pytest.mark.parametrize("swapped", [False, True])
def test_two_towers_of_one_module_have_a_table_each(names, swapped, texts):
    weights = Weights(Pair(names, swapped), batch=texts)
    sites = {site.name: attention_positions(site, weights).absolute.name for site in attention_sites(weights)}
    tables = {"enc": f"{names[0]}.weight", "dec": f"{names[1]}.weight", "late": f"{names[1]}.weight"}
    assert sites == {f"{tower}.{n}.mix": tables[tower] for tower in tables for n in range(2)}
    assert sorted(site.name for site in position_sites(weights)) == sorted({*tables.values()})


def test_two_tables_that_are_added_before_both_towers_run_are_named(texts):
    said = ", it was not seen which layers each is for: add each right before its own list of layers runs"
    said += ", or, where one list is for several, describe the tables with structured_init.register_positions, for "
    said += "Positions to write them"
    for positions in (Positions("gaussian"), PreviousToken(context=9)):
        with pytest.raises(StructuredInitError, match=f"src_pos.weight, tgt_pos.weight{said}$"):
            initialize(Pair(early=True), positions, batch=texts)
    report = initialize(Pair(early=True), Mimetic(), batch=texts)
    assert report.skipped["positions"].endswith(f"src_pos.weight, tgt_pos.weight{said}")
    (warning,) = initialize(Pair(("pos_enc", "pos_dec"), early=True), Positions("gaussian"), batch=texts).warnings
    assert warning.startswith("'pos_enc.weight' is taken for the positions of all layers: ")


class OfOneTower(nn.Module):
    """Attention and MLPs in lists of their own; a table of levels is added before or between them."""

    def __init__(self, between):
        super().__init__()
        self.between, self.words, self.pos_emb, self.level = (
            between,
            *(nn.Embedding(rows, DIM) for rows in (11, 20, 30)),
        )
        self.attns, self.ffs = nn.ModuleList(Block() for _ in range(2)), nn.ModuleList([nn.Linear(DIM, DIM)])

    def forward(self, x):
        at = torch.arange(x.shape[1])
        x = self.words(x) + self.pos_emb(at) + (0 if self.between else self.level(at))
        x = self.attns[0](x) + (self.level(at) if self.between else 0)
        return self.attns[1](self.ffs[0](x))


@pytest.mark.parametrize("between", [False, True])
def test_a_second_list_without_attention_is_no_second_tower(between, texts):
    report = initialize(OfOneTower(between), Positions("gaussian"), batch=texts[0])
    assert ([each.names[0] for each in report.changed], report.warnings) == (["pos_emb.weight"], [])


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_map_with_a_telling_name_is_no_table(bias):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes, self.pe = nn.Embedding(11, DIM), nn.Linear(6, DIM, bias=bias)  # of Laplacian eigenvectors
            self.layers = nn.ModuleList(Block() for _ in range(2))

    assert not position_sites(Graph())


class Both(nn.Module):
    """An image tower and a text tower in one module; the text's table is looked up."""

    def __init__(self):
        super().__init__()
        self.stem, self.kringle = nn.Conv2d(3, DIM, 2, 2), nn.Parameter(torch.zeros(1, 8, DIM))
        self.words, self.order = nn.Embedding(11, DIM), nn.Embedding(12, DIM)
        self.see, self.read = (nn.ModuleList(Block() for _ in range(2)) for _ in range(2))

    def forward(self, images, ids):
        x, y = self.stem(images).flatten(2).mT + self.kringle, self.words(ids) + self.order(torch.arange(ids.shape[1]))
        for see, read in zip(self.see, self.read, strict=True):
            x, y = see(x), read(y)
        return x.mean(1) @ y.mean(1).mT


class Towers(Both):
    """The same, tower after tower."""

    def forward(self, images, ids):
        x = self.stem(images).flatten(2).mT + self.kringle
        for see in self.see:
            x = see(x)
        y = self.words(ids) + self.order(torch.arange(ids.shape[1]))
        for read in self.read:
            y = read(y)
        return x.mean(1) @ y.mean(1).mT


class Bare(Towers):
    """The same, with a text that has no positions, before the images or behind them."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        del self.order

    def text(self, ids):
        y = self.words(ids)
        for read in self.read:
            y = read(y)
        return y.mean(1)

    def forward(self, images, ids):
        y = self.text(ids) if self.first else 0
        x = self.stem(images).flatten(2).mT + self.kringle
        for see in self.see:
            x = see(x)
        return x.mean(1) + (y if self.first else self.text(ids))


def test_a_note_counts_mask_tokens_among_those_that_a_table_is_added_to():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = nn.Parameter(torch.zeros(1, 1, DIM))
            self.table, self.other = (nn.Parameter(torch.randn(1, 8, DIM)) for _ in range(2))
            self.encoder, self.decoder = (nn.ModuleList([Block()]) for _ in range(2))

        def forward(self, x):
            x = self.encoder[0]((x + self.table)[:, [2, 6]])
            x = torch.cat([x, self.mask.expand(len(x), 6, -1)], 1)[:, [2, 3, 0, 4, 5, 6, 1, 7]]
            return self.decoder[0](x + self.other)

    register_positions(Masked)(lambda m: [TokenLayout((2, 4), positions=each) for each in (m.table, m.other)])
    report = initialize(Masked(), Positions("codes"), batch=torch.randn(2, 8, DIM))
    assert dict(report.notes) == dict.fromkeys(("table", "other"), "seen to be added to the tokens: 8 tokens")


@pytest.mark.parametrize(("first", "tokens"), [(True, 9), (True, 8), (False, 9)])
def test_a_tower_without_positions_is_not_given_those_of_another(first, tokens):
    batch = (torch.randn(2, 3, 4, 8), torch.randint(0, 11, (2, tokens)))
    with pytest.raises(StructuredInitError, match=r"'read\.0\.mix' (sees other .*tokens behind it|has no positions)"):
        initialize(Bare(first), PreviousToken(where="read*"), batch=batch)


def test_a_text_beside_images_has_positions_of_a_sequence():
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    model = Towers()
    report = initialize(model, Mimetic(), batch=(torch.randn(2, 3, 4, 8), ids), seed=0)
    assert torch.allclose(model.kringle[0], sincos_2d((2, 4), DIM).float())
    assert next(iter(report.notes)) == "kringle"
    assert report.notes["order.weight"] == "seen to be added to the tokens: 9 tokens"
    weights = Weights(model, batch=(torch.randn(2, 3, 4, 8), ids))
    assert attention_sites(weights)
    assert {site.name: site.grid for site in position_sites(weights)} == {"kringle": (2, 4), "order.weight": None}


@pytest.mark.parametrize(("words", "found"), [(9, ["kringle", "order.weight"]), (8, [])])
def test_tables_that_are_added_before_all_layers_run_are_told_apart_by_the_number_of_tokens_alone(words, found):
    weights = Weights(Both(), batch=(torch.randn(2, 3, 4, 8), torch.randint(0, 11, (2, words))))
    assert attention_sites(weights)
    assert [site.name for site in position_sites(weights)] == found


def test_rows_looked_up_from_one_on_count_from_there_for_a_sequence_of_numbers_too():
    class Series(Looped):
        def __init__(self):
            super().__init__(first=2)
            self.words = nn.Linear(3, DIM)

        def forward(self, x):
            x = self.words(x) + self.kringle(torch.arange(x.shape[1]) + self.first)
            return self.block(x)

    weights = Weights(Series(), batch=torch.randn(2, 9, 3))
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.name, site.num_tokens) == ("kringle.weight", 10)


# Tables that a rule finds by their name too: what was seen counts.


class Named(nn.Module):
    """A ViT by hand with a table of a usual name, and 16×16 images of patches of 4×4 by what it says of itself."""

    def __init__(self, stem, rows, behind=0):
        super().__init__()
        self.image_size, self.patch_size = 16, 4
        self.stem, self.pos_embed = stem, nn.Parameter(torch.zeros(1, rows, DIM))
        self.cls_token = nn.Parameter(torch.randn(1, behind, DIM)) if behind else None
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        if self.cls_token is not None:
            x = torch.cat([x, self.cls_token.expand(len(x), -1, -1)], 1)
        x = x + self.pos_embed
        for layer in self.layers:
            x = layer(x)
        return x


class Patches(nn.Linear):
    """Patches of 4×4 by a linear map."""

    def forward(self, x):
        return super().forward(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)).mT


class Cubes(nn.Linear):
    """Cubes of 4×4×4 by a linear map."""

    def forward(self, x):
        return super().forward(x[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).flatten(1, 3)).mT


class Single(nn.Conv2d):
    """Of images without an axis of channels, as of sounds."""

    def forward(self, x):
        return super().forward(x[:, None])


NAMED = {
    "patches by a linear map": (lambda: Named(Patches(48, DIM), 16), (2, 3, 16, 16), (4, 4)),
    "overlapping patches": (lambda: Named(nn.Conv2d(3, DIM, 4, 3), 25), (2, 3, 16, 16), (5, 5)),
    "no axis of channels": (lambda: Named(Single(1, DIM, 4, 4), 8), (2, 8, 16), (2, 4)),
    "a volume": (lambda: Named(nn.Conv3d(1, DIM, 8, 8), 8), (2, 1, 16, 16, 16), None),
    "a volume of a square number of tokens": (lambda: Named(nn.Conv3d(1, DIM, 4, 4), 64), (2, 1, 16, 16, 16), None),
    "a volume by a linear map": (lambda: Named(Cubes(64, DIM), 64), (2, 1, 16, 16, 16), None),
    "a volume of one slice": (lambda: Named(nn.Conv3d(1, DIM, (2, 4, 4), 4), 16), (2, 1, 2, 16, 16), (4, 4)),
}


@pytest.mark.parametrize("case", NAMED)
def test_the_grid_that_was_seen_comes_before_what_a_rule_says(case):
    build, shape, grid = NAMED[case]
    weights = Weights(build(), batch=torch.randn(shape))
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.grid, site.num_tokens) == (grid, site.tensor.shape[1])
    if grid is not None:  # positions alone run the model too
        model = build()
        initialize(model, Positions(), batch=torch.randn(shape))
        assert torch.allclose(model.pos_embed[0], sincos_2d(grid, DIM).float())


def test_without_a_batch_no_rows_are_taken_for_those_of_tokens_that_there_are_not():
    for case in ("overlapping patches", "a volume"):
        model = NAMED[case][0]()
        assert position_sites(model) == []
        del model.image_size  # by which it would be run
        with pytest.raises(StructuredInitError, match=r"; given a batch, as batch=…, one forward pass finds"):
            initialize(model, Positions())


def test_a_table_with_rows_of_tokens_behind_the_patches_is_left_alone_with_the_reason():
    model = Named(nn.Conv2d(3, DIM, 4, 4), 17, behind=1)
    report = initialize(model, Mimetic(), batch=torch.randn(2, 3, 16, 16))
    assert not model.pos_embed.any()
    said = "left alone: the tokens it is added to were not seen to be all patches behind class"
    assert report.skipped["pos_embed"].startswith(said)
    assert "positions" not in report.skipped  # it is said once
    assert report.unset_positions == ["pos_embed"]
    for method in (Positions(), Impulse(solver="separable")):
        with pytest.raises(StructuredInitError, match=f"'pos_embed' is {said}"):
            initialize(model, method, batch=torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("first", [0, 1])
def test_a_described_table_with_rows_of_tokens_behind_the_patches_is_refused(first):
    class Behind(Named):
        pass

    register_positions(Behind)(lambda module: TokenLayout((4, 4), positions=module.pos_embed, first=first))
    model = Behind(nn.Conv2d(3, DIM, 4, 4), 17, behind=1)
    with pytest.raises(StructuredInitError, match="'pos_embed' has rows for tokens behind the patches"):
        initialize(model, Mimetic(), batch=torch.randn(2, 3, 16, 16))


class Masked(Foreign):
    """A masked autoencoder: the decoder's table is added to tokens in another order."""

    def __init__(self):
        super().__init__()
        self.again = nn.Parameter(torch.randn(1, 1 + SIDE**2, DIM))
        self.mask, self.decoder = nn.Parameter(torch.randn(1, 1, DIM)), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.tokens(x) + self.kringle
        for layer in self.layers:
            x = layer(x[:, ::2])
        x = torch.cat([x, self.mask.expand(len(x), 1 + SIDE**2 - x.shape[1], -1)], 1)
        x = x + self.again
        for layer in self.decoder:
            x = layer(x)
        return x


def test_of_a_table_that_is_left_alone_mask_tokens_and_the_way_out_are_said():
    why = initialize(Masked(), Mimetic(), batch=images()).skipped["again"]
    assert "mask tokens" in why
    assert why.endswith("say what the grid is with structured_init.register_positions")


@pytest.mark.parametrize("method", [Skipless(), Conditioned(), UniformProjections(), Mimetic(positions="keep")])
def test_of_positions_nothing_is_said_where_nobody_asks_for_them(method):
    report = initialize(Masked(), method, batch=images())
    assert not {"kringle", "again"} & {*report.notes, *report.skipped}
    assert "seen to be added" in initialize(Masked(), Mimetic(), batch=images()).notes["kringle"]


@pytest.mark.parametrize("build", [Masked, lambda: nn.ModuleDict({"enc": Foreign(), "dec": Block()})])
def test_under_where_the_positions_of_another_tower_stay(build):
    model = build()
    if isinstance(model, nn.ModuleDict):
        model.forward = lambda x: (model.enc(x), model.dec(model.enc.tokens(x)))
    where = "dec*"
    report = initialize(model, Mimetic(where=where), batch=images())
    assert all(name.startswith("dec") for entry in report.changed for name in entry.names)
    (table,) = (name for name in report.skipped if name.endswith("kringle"))
    assert report.skipped[table] == f"not the positions of what where={where!r} selects"
    with pytest.raises(StructuredInitError, match="writes no positions of this model"):
        initialize(model, SamePositions(Mimetic(where=where)), batch=images())


def test_under_where_a_described_table_that_stands_around_no_layer_is_written():
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.table = nn.Conv2d(3, DIM, 2, 2), nn.Parameter(torch.randn(1, SIDE**2, DIM))

        def forward(self, x):
            return self.stem(x).flatten(2).mT + self.table

    register_positions(Placed)(lambda module: TokenLayout((SIDE, SIDE), 0, module.table))
    model = nn.Sequential(OrderedDict(emb=Placed(), layers=nn.Sequential(*(Block() for _ in range(2)))))
    report = initialize(model, Mimetic(where="layers.0*"), batch=images())
    assert "emb.table" in {name for entry in report.changed for name in entry.names}


class Queries(Foreign):
    """Learned queries, as many as there are patches, look at the tokens; what they see is added to them."""

    def __init__(self, placed, normed):
        super().__init__()
        self.latents, self.placed = nn.Parameter(0.02 * torch.randn(SIDE**2, DIM)), placed
        self.norm, self.look = nn.LayerNorm(DIM) if normed else nn.Identity(), nn.Linear(DIM, DIM)
        self.keys, self.back = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        (key, value), latents = self.keys(super().tokens(x)).chunk(2, -1), self.latents.expand(len(x), -1, -1)
        if self.placed:
            key, value = self.keys(super().tokens(x) + self.kringle).chunk(2, -1)
        latents = latents + self.back((self.look(self.norm(latents)) @ key.mT).softmax(-1) @ value)
        for layer in self.layers:
            latents = layer(latents)
        return latents


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_learned_queries_are_no_positions(placed, normed):
    assert [site.name for site in position_sites(Queries(placed, normed), batch=images())] == ["kringle"] * placed


@pytest.mark.parametrize("learned", [False, True])
def test_object_queries_that_every_layer_adds_anew_are_no_positions(learned):
    class Detr(Queries):
        """A decoder that begins with zeros, or with a table of its own, as many as there are patches."""

        def __init__(self):
            super().__init__(placed=True, normed=True)
            self.start = nn.Parameter(torch.randn(SIDE**2, DIM) * learned)

        def forward(self, x):
            key, value = self.keys(self.tokens(x) + self.kringle).chunk(2, -1)
            y = self.start.expand(len(x), -1, -1) if learned else torch.zeros(len(x), SIDE**2, DIM)
            for layer in self.layers:
                y = y + self.back((self.look(self.norm(y + self.latents)) @ key.mT).softmax(-1) @ value)
                y = layer(y + self.latents)
            return y

    assert [site.name for site in position_sites(Detr(), batch=images())] == ["kringle"]


def test_tokens_that_happen_to_be_zero_have_positions():
    model = Foreign()
    nn.init.zeros_(model.stem.weight)
    nn.init.zeros_(model.stem.bias)
    assert [site.name for site in position_sites(model, batch=images())] == ["kringle"]


def test_a_class_token_that_comes_behind_the_first_layers_does_not_take_their_grid():
    class Late(Foreign):
        def __init__(self):
            super().__init__(late=1)
            self.last = nn.ModuleList(Block() for _ in range(1))

        def forward(self, x):
            x = self.tokens(x) + self.kringle
            for layer in self.layers:
                x = layer(x)
            return self.last[0](torch.cat([self.late.expand(len(x), -1, -1), x], 1))

    sites = attention_sites(Late(), batch=images())
    assert [(site.grid, site.prefix_tokens) for site in sites] == [((SIDE, SIDE), 0)] * 2 + [(None, 0)]


def test_a_table_of_a_usual_name_that_was_not_added_gives_way_to_one_that_was():
    class Tagged(Text):
        def __init__(self):
            super().__init__()
            self.pos_emb = nn.Embedding(20, DIM)  # of parts of speech

        def forward(self, ids, kinds):
            return super().forward(ids) + self.pos_emb(kinds)

    ids, kinds = torch.randint(0, 11, (2, 2, 9), generator=torch.Generator().manual_seed(0))
    weights = Weights(Tagged(), batch=(ids, kinds))
    assert attention_sites(weights)
    assert [site.name for site in position_sites(weights)] == ["kringle"]


@pytest.mark.parametrize("given", ["steps", "frames"])
def test_steps_of_time_beside_images_are_no_square(given):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.act, self.time = nn.Conv2d(3, DIM, 4, 4), nn.Linear(5, DIM), nn.Embedding(16, DIM)
            self.layers = nn.ModuleList(Block() for _ in range(2))

        def forward(self, images, actions=None):
            x = self.stem(images.flatten(0, -4)).mean((2, 3))
            x = x.view(2, -1, DIM) if actions is None else x[:, None] + self.act(actions)
            x = x + self.time(torch.arange(16))
            for layer in self.layers:
                x = layer(x)
            return x

    frames = torch.randn(2, 16, 3, 8, 8)
    weights = Weights(Policy(), batch=frames if given == "frames" else (frames[:, 0], torch.randn(2, 16, 5)))
    assert attention_sites(weights)
    assert [(site.name, site.grid) for site in position_sites(weights)] == [("time.weight", None)]


class Night(nn.Module):
    """Epochs of several channels, or a spectrogram's frames, to which the first rows of a longer table are added."""

    def __init__(self, stem):
        super().__init__()
        self.stem, self.kringle = stem, nn.Parameter(torch.randn(1, 50, DIM))
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.stem(x).flatten(2)
        x = x + self.kringle[:, : x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x


class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.project = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(16, DIM)

    def forward(self, x):
        return self.project(self.conv(x).permute(0, 3, 1, 2).flatten(2))


@pytest.mark.parametrize(
    ("stem", "shape"),
    [
        (nn.Sequential(nn.Flatten(2), nn.Linear(100, DIM)), (2, 25, 4, 25)),
        (nn.Sequential(nn.Flatten(2), nn.Linear(100, DIM)), (2, 50, 4, 25)),
        (Spectrogram(), (2, 1, 8, 64)),
    ],
    ids=["short nights", "whole nights", "spectrogram"],
)
def test_series_with_axes_as_of_images_have_the_first_rows_of_a_longer_table(stem, shape):
    (site,) = position_sites(Night(stem), batch=torch.randn(shape))
    assert (site.name, site.grid, site.num_tokens) == ("kringle", None, 50)


def test_as_many_channels_as_square_patches_are_a_grid():
    (model := Foreign(patch="linear")).stem = nn.Linear(16 * 4, DIM)
    assert [site.grid for site in position_sites(model, batch=torch.randn(2, 16, 8, 8))] == [(SIDE, SIDE)]


class Dates(Foreign):
    """Space layers over the patches of 16 dates, then time layers over the dates of their means."""

    def __init__(self):
        super().__init__()
        self.dates = nn.Parameter(0.02 * torch.randn(1, SIDE**2, DIM))
        self.time = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        y = self.stem(x.flatten(0, 1)).flatten(2).mT + self.kringle
        for layer in self.layers:
            y = layer(y)
        y = y.unflatten(0, x.shape[:2]).mean(2) + self.dates
        for layer in self.time:
            y = layer(y)
        return y


def test_as_many_dates_as_patches_are_a_row():
    report = initialize(model := Dates(), Mimetic(), batch=torch.randn(2, 16, 3, 8, 8))
    assert torch.allclose(model.kringle[0], sincos_2d((SIDE, SIDE), DIM).float())
    assert report.skipped["dates"] == NO_GRID.format("sincos")


class InTurn(nn.Module):
    """Space attention over patches and time attention over dates in turn, with both tables added at first."""

    def __init__(self, place, date):
        super().__init__()
        self.stem = nn.Conv2d(3, DIM, 2, 2)
        self.kringle, self.when = (nn.Parameter(0.02 * torch.randn(*shape, DIM)) for shape in (place, date))
        self.blocks = nn.ModuleList(nn.ModuleDict({"space": Block(), "time": Block()}) for _ in range(2))

    def forward(self, x):
        x = self.stem(x.flatten(0, 1)).flatten(2).mT.unflatten(0, x.shape[:2])  # (B, dates, places, D)
        x = x + self.kringle + self.when
        for block in self.blocks:
            y = block["space"](x.flatten(0, 1)).unflatten(0, x.shape[:2])
            x = block["time"](y.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1)).transpose(1, 2)
        return x


def test_tables_of_places_and_of_dates_are_told_apart_by_the_tokens_that_attention_sees():
    model = InTurn((1, 1, SIDE**2), (1, 6, 1))
    sites = attention_sites(model, batch=torch.randn(2, 6, 3, 8, 8))
    assert [site.grid for site in sites] == [(SIDE, SIDE), None] * 2
    report = initialize(model, Mimetic(), batch=torch.randn(2, 6, 3, 8, 8))
    assert torch.allclose(model.kringle[0, 0], sincos_2d((SIDE, SIDE), DIM).float())
    assert report.skipped == {"when": NO_GRID.format("sincos")}


def test_tables_that_nothing_tells_apart_are_named():
    model = InTurn((1, 1, SIDE**2), (1, SIDE**2, 1))
    report = initialize(model, Mimetic(), batch=torch.randn(2, SIDE**2, 3, 8, 8))
    said = "of the tables that are added to tokens, when, kringle, it was not seen which layers each is for"
    assert report.skipped["positions"].startswith(said)


def test_what_is_added_to_the_maps_of_a_convolution_is_no_table_of_positions():
    class Tilted(Foreign):
        def __init__(self):
            super().__init__()
            self.tilt = nn.Parameter(torch.randn(1, 1, 8, 8))

        def forward(self, x):
            return super().forward(x + self.tilt)

    assert [site.name for site in position_sites(Tilted(), batch=torch.randn(2, 3, 8, 8))] == ["kringle"]


def test_later_layers_of_pooled_tokens_are_not_given_the_grid_of_the_first():
    class Pooled(Named):
        def __init__(self):
            super().__init__(nn.Conv2d(3, DIM, 4, 4), 16)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True) for _ in range(2))

        def forward(self, x):
            x = self.layers[0](self.stem(x).flatten(2).mT + self.pos_embed)
            return self.layers[1](x.unflatten(1, (-1, 4)).mean(2))

    sites = attention_sites(Pooled(), batch=torch.randn(2, 3, 16, 16))
    assert [site.grid for site in sites] == [(4, 4), None]


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.spots, self.layers = nn.Parameter(torch.randn(9, DIM)), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = x + self.spots
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_table_that_is_described_does_not_hide_those_that_a_pass_finds():
    class Described(Tower):
        pass

    register_positions(Described)(lambda module: TokenLayout(grid=None, positions=module.spots))
    words = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    written = {}
    for name in ("gaussian", "previous_token", "previous_token_positions"):
        model = nn.Sequential(nn.Embedding(11, DIM), Tower(), Described())
        assert {site.name for site in position_sites(model, batch=words)} == {"1.spots", "2.spots"}
        arm = Positions("gaussian") if name == "gaussian" else preset(name)
        written[name] = {each.names[0] for each in initialize(model, arm, batch=words).changed if "spots" in str(each)}
    assert written["gaussian"] == {"1.spots", "2.spots"}
    assert written["previous_token"] == written["previous_token_positions"] == {"1.spots"}  # of the first layer


class Signs(nn.Module):
    """Tokens of frames × joints, with a table for each; attention over joints, then over frames."""

    def __init__(self, joints=8, names=("frames", "joints"), buffer=False):
        super().__init__()
        tables = (0.02 * torch.randn(1, 6, 1, DIM), 0.02 * torch.randn(1, 1, joints, DIM))
        self.names = names
        for name, table, fixed in zip(names, tables, (buffer, False), strict=True):
            self.register_buffer(name, table) if fixed else self.register_parameter(name, nn.Parameter(table))
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = x + getattr(self, self.names[0]) + getattr(self, self.names[1])
        for block in self.blocks:
            x = block(x.flatten(0, 1)).unflatten(0, x.shape[:2]).transpose(1, 2)
        return x


def frames(module):
    return TokenLayout(grid=(1, 6), positions=getattr(module, module.names[0]))


def both(module):
    return [frames(module), TokenLayout(grid=(2, 4), positions=module.joints)]


SIGNS = {
    "none registered": (None, {}, None, None),
    "by rule": (None, {"names": ("pos_embed", "joints")}, None, None),
    "frames": (frames, {}, (1, 6), None),
    "frames, a buffer": (frames, {"buffer": True}, (1, 6), None),
    "both": (both, {}, (1, 6), (2, 4)),
}


@pytest.mark.parametrize("case", SIGNS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_of_two_tables_one_that_is_known_does_not_hide_the_other(case, wrapped):
    registered, changes, *grids = SIGNS[case]

    class Own(Signs):
        pass

    if registered is not None:
        register_positions(Own)(registered)
    model, batch = Own(**changes), torch.randn(2, 6, 8, DIM)
    whole, before = (nn.Sequential(model), "0.") if wrapped else (model, "")
    names = [before + name for name in model.names]
    assert {site.name: site.grid for site in position_sites(whole, batch=batch)} == dict(zip(names, grids, strict=True))
    weights = Weights(whole, batch=batch)
    over = [attention_positions(site, weights).absolute.name for site in attention_sites(weights)]
    assert over == names[::-1]  # joints first
    report = initialize(whole, Positions("gaussian", where="joints"), batch=batch)
    assert [entry.names[0] for entry in report.changed] == names[1:]
    assert report.notes[names[1]] == "seen to be added to the tokens: 8 tokens"


def test_a_registered_table_that_is_not_told_from_another_is_taken_with_a_warning():
    class Own(Signs):
        pass

    register_positions(Own)(frames)
    batch = torch.randn(2, 6, 6, DIM)
    assert {site.name for site in position_sites(Own(6), batch=batch)} == {"frames", "joints"}
    (said,) = initialize(Own(6), Positions("gaussian"), batch=batch).warnings
    assert said.startswith("'frames' is taken for the positions of all layers: of the tables that are added to tokens,")


class Placed(nn.Module):
    def __init__(self, buffer=False):
        super().__init__()
        table = 0.02 * torch.randn(1, 9, DIM)
        self.register_buffer("table", table) if buffer else self.register_parameter("table", nn.Parameter(table))

    def forward(self, x):
        return x + self.table


@pytest.mark.parametrize("grid", [None, (1, 9)])
def test_a_table_registered_for_a_module_without_attention_is_that_of_the_attention_that_is_seen(grid):
    class Own(Placed):
        pass

    register_positions(Own)(lambda module: TokenLayout(grid, positions=module.table))
    batch = torch.randn(2, 9, DIM)
    report = initialize(nn.Sequential(OrderedDict(places=Own(), block=Block())), PreviousToken([1]), batch=batch)
    assert "places.table" in {entry.names[0] for entry in report.changed}
    said = "positions of 'places.table' are registered for a module that does not contain the attention: register the"
    for who, arm in (("'block.mix' has no positions", PreviousToken([1])), ("'block.mix' has no grid", Impulse())):
        with pytest.raises(StructuredInitError, match=f"{who} that (are|is) known: {said} class around both$"):
            initialize(nn.Sequential(OrderedDict(places=Own(buffer=True), block=Block())), arm, batch=batch)


def test_without_a_batch_tables_that_are_registered_together_are_not_told_apart():
    class Own(Signs):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.MultiheadAttention(DIM, 2) for _ in range(2))

    register_positions(Own)(both)
    assert [site.name for site in position_sites(Own())] == ["frames", "joints"]
    said = "has no positions that are known: of the tables that are added to tokens, frames, joints, it was not seen"
    with pytest.raises(StructuredInitError, match=f"'blocks.0' {said} .*; given a batch"):
        initialize(Own(), PreviousToken())


class Table(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(rows, dim))

    def forward(self, places):
        return self.rows[places]


class Documents(nn.Module):
    """Attention over 9 words, then over 4 sentences; padding on the left moves the places of words."""

    def __init__(self, kind=nn.Embedding, words=9):
        super().__init__()
        self.words, self.places = nn.Embedding(11, DIM), nn.ModuleList([kind(words, DIM), kind(4, DIM)])
        self.sentence, self.document = Block(), Block()

    def forward(self, ids):
        flat = ids.flatten(0, 1)
        places = ((flat != 0).cumsum(-1) - 1).clamp_min(0)
        x = self.sentence(self.words(flat) + self.places[0](places)).mean(1).unflatten(0, (-1, 4))
        return self.document(x + self.places[1](torch.arange(4)))


@pytest.fixture
def sentences():
    return torch.randint(1, 11, (2, 4, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [nn.Embedding, Table])
def test_tables_in_a_list_of_their_own_are_found(kind, sentences):
    weights = Weights(Documents(kind), batch=sentences)
    tables = [attention_positions(site, weights).absolute for site in attention_sites(weights)]
    assert [(table.name.split(".")[1], table.num_tokens) for table in tables] == [("0", 9), ("1", 4)]


@pytest.mark.parametrize("rows", [9, 20])
def test_a_registered_table_that_padding_hides_is_that_of_as_many_tokens(rows, sentences):
    class Own(Documents):
        pass

    sentences[0, :, :3] = 0
    said = "'sentence.mix' has no positions that are known: 'places.1.weight' gives 4 rows to the 9 tokens that"
    skipped = initialize(Own(words=rows), PreviousToken([1]), batch=sentences).skipped["sentence.mix"]
    assert skipped.startswith(said)
    assert skipped.endswith("if there is one already, a batch without padding shows it")
    register_positions(Own)(lambda module: [TokenLayout(None, positions=each.weight) for each in module.places])
    weights = Weights(Own(words=rows), batch=sentences)
    tables = [attention_positions(site, weights).absolute.name for site in attention_sites(weights)]
    assert tables == ["places.0.weight", "places.1.weight"]


def test_an_embedding_in_the_place_of_its_weight_is_answered_in_one_line(as_installed):
    said = "TokenLayout: positions takes a tensor, not Embedding: give module.….weight"
    with pytest.raises(StructuredInitError, match=f"^{said}$"):
        TokenLayout(None, positions=nn.Embedding(9, DIM))

"""A learned table of any name that is added to the tokens, found by the forward pass that finds attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    Compose,
    Mimetic,
    Positions,
    PreviousToken,
    SamePositions,
    StructuredInitError,
    TokenLayout,
    attention_sites,
    initialize,
    position_sites,
    register_positions,
)
from structured_init.attention.positions import NO_GRID, sincos_2d
from structured_init.hosts.attention_positions import attention_positions
from structured_init.weights import Weights

DIM, SIDE = 16, 4

LEFT_ALONE = NO_GRID.format("sincos") + "; positions='keep' leaves those of a sequence"  # as Mimetic says it


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.back = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (2, -1)).transpose(1, 2) for m in (self.to_q, self.to_k, self.to_v))
        return self.back((self.logits(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2))

    def logits(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5


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
        self.layers = nn.Sequential(Block(), Block())
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
        return self.head(self.layers(x).mean(1))


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
    assert report.notes["kringle"].startswith(said)
    assert report.unset_positions == []


@pytest.mark.parametrize("control", [False, True])
def test_positions_alone_are_found_and_frozen_too(control):
    model = Foreign()
    alone = Positions(trainable=False)
    initialize(model, SamePositions(Compose([Mimetic(), alone])) if control else alone, batch=images())
    assert torch.allclose(model.kringle[0], sincos_2d((SIDE, SIDE), DIM).float())
    assert not model.kringle.requires_grad


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
    with pytest.raises(StructuredInitError, match="tables that are added to tokens, krongle, kringle, it was not"):
        initialize(Two(both=True), Positions(), batch=images())


@pytest.mark.parametrize(("rows", "columns"), [(2, 4), (2, 8)])
def test_the_grid_is_that_of_the_convolution_that_gives_the_patches(rows, columns):
    model = Foreign(table=(1, rows * columns, DIM))
    report = initialize(model, Positions(), batch=torch.randn(2, 3, 2 * rows, 2 * columns))
    assert torch.allclose(model.kringle[0], sincos_2d((rows, columns), DIM).float())
    assert report.notes["kringle"].endswith(f"a grid of {rows}×{columns}")


class ChannelsFirst(nn.Module):
    def __init__(self, name, shape):
        super().__init__()
        self.stem, self.name = nn.Conv2d(3, DIM, 2, 2), name
        self.layers = nn.Sequential(Block(), Block())
        self.register_parameter(name, nn.Parameter(0.02 * torch.randn(shape)))
        self.lead = nn.Parameter(torch.randn(1, DIM, 1)) if name == "led" else None

    def forward(self, x):
        x = self.stem(x).relu().flatten(2)
        x = x if self.lead is None else torch.cat([self.lead.expand(len(x), -1, -1), x], 2)
        x = (x + self._parameters[self.name]).mT
        return self.layers(x)


@pytest.mark.parametrize(("name", "lead", "rows"), [("kringle", 0, 2), ("led", 1, 2), ("pos", 0, 4)])  # 16 channels
def test_a_table_whose_channels_come_before_its_tokens_is_written_so(name, lead, rows):
    model = ChannelsFirst(name, (1, DIM, lead + 4 * rows))
    report = initialize(model, Positions(), batch=torch.randn(2, 3, 2 * rows, 8))
    assert torch.allclose(model.get_parameter(name)[0, :, lead:].mT, sincos_2d((rows, 4), DIM).float())
    assert report.notes[name].endswith(f"a grid of {rows}×4")


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
        return self.head(self.layers(x).mean(1))


@pytest.mark.parametrize("leading", [0, 1])
def test_a_table_that_a_model_resizes_is_found_at_its_own_size_and_named_at_another(leading):
    model = Resized(leading)
    (site,) = position_sites(model, batch=images())
    assert (site.name, site.grid, site.num_tokens) == ("kringle", (SIDE, SIDE), SIDE**2)
    with pytest.raises(StructuredInitError, match="'kringle' is resized before it is added to the tokens: give a b"):
        initialize(model, Positions(), batch=images(side=4 * SIDE))
    assert "'kringle' is resized" in str(initialize(model, Mimetic(), batch=images(side=4 * SIDE)).skipped)


FRAMES = {
    "two crops": ((2, 3, 10, 12), lambda x: torch.cat([x[..., :8, :8], x[..., -8:, -8:]])),
    "the last frame, channels last": ((2, 4, 8, 8, 3), lambda x: x[:, -1].movedim(-1, 1)),
    "all frames": ((2, 5, 3, 8, 8), lambda x: x.flatten(0, 1)),
    "resized": ((2, 3, 30, 40), lambda x: nn.functional.interpolate(x, (8, 8))),
}


@pytest.mark.parametrize("case", FRAMES)
def test_linear_patches_of_what_a_model_makes_of_its_images_have_a_grid(case):
    shape, prepare = FRAMES[case]
    model = Foreign(patch="linear")
    tokens = model.tokens
    model.tokens = lambda x: tokens(prepare(x))
    (site,) = position_sites(model, batch=torch.randn(shape))
    assert site.grid == (SIDE, SIDE)


@pytest.mark.parametrize("high", [8, 4])
def test_the_row_of_a_class_token_stays_where_a_model_makes_several_samples_of_an_image(high):
    model = Foreign(table=(1, 1 + high * 2, DIM), leading=1, patch="linear")
    tokens = model.tokens
    windows = lambda x: x.unfold(2, high, high).unfold(3, 8, 8).movedim(1, 3).flatten(0, 2)  # noqa: E731
    model.tokens = lambda x: tokens(windows(x))
    before, batch = model.kringle.detach().clone(), images(side=16)
    (site,) = position_sites(model, batch=batch)
    assert (site.grid, site.num_tokens) == ((SIDE, SIDE) if high == 8 else None, high * 2)
    initialize(model, Positions("gaussian"), batch=batch)
    changed = (model.kringle != before)[0].any(-1)
    assert changed.tolist() == [False] + [True] * high * 2


def test_cubes_of_a_volume_have_no_rows_and_columns_even_where_they_are_a_square_number():
    model = Foreign(table=(1, 64, DIM))
    model.stem = nn.Linear(8, DIM)
    cubes = lambda x: x.unfold(1, 2, 2).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).flatten(1, 3)  # noqa: E731
    model.tokens = lambda x: model.stem(cubes(x[:, 0]))
    (site,) = position_sites(model, batch=torch.randn(2, 1, 8, 8, 8))
    assert (site.grid, site.num_tokens) == (None, 64)


@pytest.mark.parametrize(("rows", "found"), [(4, True), (6, False)])
def test_of_a_table_with_rows_and_columns_all_is_positions_and_a_crop_is_left_alone(rows, found):
    model = Foreign(table=(1, rows, 4, DIM), patch="linear")
    tokens = model.tokens
    model.tokens = lambda x: tokens(x) + model.kringle[:, :SIDE].flatten(1, 2)
    model.forward = lambda x: model.layers(model.tokens(x))
    assert [site.grid for site in position_sites(model, batch=images())] == [(SIDE, SIDE)] * found


class OnAGrid(Foreign):
    """Positions are added to patches that still lie in rows and columns, as in SAM and VOLO."""

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1) + self.kringle
        return self.head(self.layers(x.flatten(1, 2)).mean(1))


def test_a_table_that_is_added_to_rows_and_columns_has_their_grid():
    model = OnAGrid(table=(1, 2, 8, DIM))
    [site] = position_sites(model, batch=torch.randn(2, 3, 4, 16))
    assert (site.name, site.grid, site.num_tokens) == ("kringle", (2, 8), 16)
    initialize(model, Positions("sincos"), batch=torch.randn(2, 3, 4, 16))
    assert torch.equal(model.kringle.flatten(0, 2), sincos_2d((2, 8), DIM).float())


def test_tokens_that_no_square_patches_give_are_positions_without_a_grid():
    model = Foreign(table=(1, 8, DIM), patch="linear")
    model.stem = nn.Linear(24, DIM)
    model.tokens = lambda x: model.stem(x.unfold(2, 2, 2).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 8, 24))
    batch = torch.randn(2, 3, 4, 16)
    with pytest.raises(StructuredInitError, match="'kringle' holds positions of a sequence"):
        initialize(model, Positions(), batch=batch)
    assert initialize(model, Mimetic(), batch=batch).skipped["kringle"] == LEFT_ALONE
    model.image_size, model.patch_size = (4, 8), 2
    initialize(model, Positions(), batch=batch)
    assert torch.allclose(model.kringle[0], sincos_2d((2, 4), DIM).float())


def test_a_bias_of_every_layer_is_no_position():
    class Biased(Block):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1, SIDE**2, DIM))

        def forward(self, x):
            return super().forward(x + self.shift)

    model = Foreign()
    model.layers = nn.Sequential(Biased(), Biased())
    report = initialize(model, Mimetic(), batch=images())
    assert [entry.names[0] for entry in report.changed if "shift" in entry.names[0]] == []


class Looped(nn.Module):
    """One block that runs several times; rows of its table are looked up from one on, or cut off."""

    def __init__(self, first):
        super().__init__()
        self.words, self.kringle, self.first = nn.Embedding(11, DIM), nn.Embedding(12, DIM), first
        self.block = Block()

    def forward(self, ids):
        length = ids.shape[1]
        cut = self.first is None
        x = self.words(ids) + (self.kringle.weight[:length] if cut else self.kringle(torch.arange(length) + self.first))
        for _ in range(3):
            x = self.block(x)
        return x


@pytest.mark.parametrize("first", [None, 0, 2])
def test_rows_that_are_looked_up_in_order_are_positions_of_a_sequence_even_of_a_square_number(first):
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    weights = Weights(Looped(first), batch=ids)
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.name, site.grid, site.num_tokens) == ("kringle.weight", None, 12 - (first or 0))


class Pair(nn.Module):
    """An encoder and a decoder in one module, each with a table of its own."""

    def __init__(self, names, swapped):
        super().__init__()
        self.words, self.names, self.swapped = nn.Embedding(11, DIM), names, swapped
        for rows, name in zip((20, 25), names, strict=True):
            setattr(self, name, nn.Embedding(rows, DIM))
        self.enc, self.dec, self.late = (nn.ModuleList(Block() for _ in range(2)) for _ in range(3))

    def forward(self, src, tgt):
        both = list(zip((src, tgt), self.names, ([*self.enc], [*self.dec, *self.late]), strict=True))
        both = both[::-1] if self.swapped else both
        placed = ((self.words(x) + getattr(self, name)(torch.arange(x.shape[1])), layers) for x, name, layers in both)
        for x, layers in placed:
            for layer in layers:
                x = layer(x)
        return x


@pytest.mark.parametrize(("names", "swapped"), [(("src_pos", "tgt_pos"), False), (("pos_enc", "pos_dec"), True)])
def test_two_towers_of_one_module_have_a_table_each(names, swapped):
    texts = tuple(torch.randint(0, 11, (2, 2, 9), generator=torch.Generator().manual_seed(0)))
    weights = Weights(Pair(names, swapped), batch=texts)
    sites = {site.name: attention_positions(site, weights).absolute.name for site in attention_sites(weights)}
    tables = {"enc": f"{names[0]}.weight", "dec": f"{names[1]}.weight", "late": f"{names[1]}.weight"}
    assert sites == {f"{tower}.{n}.mix": tables[tower] for tower in tables for n in range(2)}
    assert sorted(site.name for site in position_sites(weights)) == sorted({*tables.values()})


class Towers(nn.Module):
    """An image tower, then a text tower, in one module; the text's table is looked up."""

    def __init__(self):
        super().__init__()
        self.stem, self.kringle = nn.Conv2d(3, DIM, 2, 2), nn.Parameter(torch.zeros(1, 8, DIM))
        self.words, self.order = nn.Embedding(11, DIM), nn.Embedding(12, DIM)
        self.see, self.read = (nn.Sequential(Block(), Block()) for _ in range(2))

    def text(self, ids):
        return self.words(ids) + self.order(torch.arange(ids.shape[1]))

    def forward(self, images, ids):
        x = self.stem(images).flatten(2).mT + self.kringle
        return self.see(x).mean(1) @ self.read(self.text(ids)).mean(1).mT


class Bare(Towers):
    """The same, with a text that has no positions."""

    def text(self, ids):
        return self.words(ids)


def test_a_tower_without_positions_is_not_given_those_of_another():
    batch = (torch.randn(2, 3, 4, 8), torch.randint(0, 11, (2, 9)))
    with pytest.raises(StructuredInitError, match=r"'read\.0\.mix' (sees other .*tokens behind it|has no positions)"):
        initialize(Bare(), PreviousToken(where="read*"), batch=batch)


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


class Joint(Towers):
    """Both are read by one encoder, beside each other or after a convolution; a decoder looks at the image alone."""

    def __init__(self, how):
        super().__init__()
        self.how, self.mixed = how, nn.Conv1d(DIM, DIM, 3, padding=1)
        self.look = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, images, ids):
        x, y = self.stem(images).flatten(2).mT + self.kringle, self.words(ids)
        x = self.see(x)
        if self.how == "looked at":
            x = y + self.look(y, x, x, need_weights=False)[0]
        elif self.how == "beside each other":
            x = torch.cat([x, self.text(ids)], 1)
        else:
            x = self.mixed(x.mT).mT
        return self.read(x)


@pytest.mark.parametrize("how", ["beside each other", "looked at", "convolved"])
def test_a_layer_whose_tokens_were_not_given_a_table_has_none(how):
    batch = (torch.randn(2, 3, 4, 8), torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0)))
    weights = Weights(Joint(how), batch=batch)
    tables = {site.name: attention_positions(site, weights).absolute for site in attention_sites(weights)}
    assert {name for name, table in tables.items() if table is not None} == {"see.0.mix", "see.1.mix"}
    assert {table.name for table in tables.values() if table is not None} == {"kringle"}


# Tables that a rule finds by their name too: what was seen counts.


class Named(nn.Module):
    """A ViT by hand with a table of a usual name, and 16×16 images of patches of 4×4 by what it says of itself."""

    def __init__(self, stem, rows, behind=0):
        super().__init__()
        self.image_size, self.patch_size = 16, 4
        self.stem, self.pos_embed = stem, nn.Parameter(torch.zeros(1, rows, DIM))
        self.cls_token = nn.Parameter(torch.randn(1, behind, DIM)) if behind else None
        self.layers = nn.Sequential(Block(), Block())

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        if self.cls_token is not None:
            x = torch.cat([x, self.cls_token.expand(len(x), -1, -1)], 1)
        x = x + self.pos_embed
        return self.layers(x)


class Patches(nn.Linear):
    """Patches of 4×4 by a linear map."""

    def forward(self, x):
        return super().forward(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)).mT


NAMED = {
    "patches by a linear map": (lambda: Named(Patches(48, DIM), 16), (2, 3, 16, 16), (4, 4)),
    "overlapping patches": (lambda: Named(nn.Conv2d(3, DIM, 4, 3), 25), (2, 3, 16, 16), (5, 5)),
    "a volume": (lambda: Named(nn.Conv3d(1, DIM, 8, 8), 8), (2, 1, 16, 16, 16), None),
    "a volume of one slice": (lambda: Named(nn.Conv3d(1, DIM, (2, 4, 4), 4), 16), (2, 1, 2, 16, 16), (4, 4)),
}


@pytest.mark.parametrize("case", NAMED)
def test_the_grid_that_was_seen_comes_before_what_sizes_say(case):
    build, shape, grid = NAMED[case]
    weights = Weights(build(), batch=torch.randn(shape))
    assert attention_sites(weights)
    (site,) = position_sites(weights)
    assert (site.grid, site.num_tokens) == (grid, site.tensor.shape[1])
    if grid is not None:  # positions alone run the model too
        model = build()
        initialize(model, Positions(), batch=torch.randn(shape))
        assert torch.allclose(model.pos_embed[0], sincos_2d(grid, DIM).float())


def test_without_a_batch_one_line_says_that_a_pass_would_find_the_table():
    model = NAMED["overlapping patches"][0]()
    assert [site.grid for site in position_sites(model)] == [(5, 5)]  # on images of the size that the model names
    del model.image_size
    assert position_sites(model) == []
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
    with pytest.raises(StructuredInitError, match=f"'pos_embed' is {said}"):
        initialize(model, Positions(), batch=torch.randn(2, 3, 16, 16))


class Masked(Foreign):
    """A masked autoencoder: the decoder's table is added to tokens in another order."""

    def __init__(self):
        super().__init__()
        self.again = nn.Parameter(torch.randn(1, 1 + SIDE**2, DIM))
        self.mask, self.decoder = nn.Parameter(torch.randn(1, 1, DIM)), nn.Sequential(Block(), Block())

    def forward(self, x):
        x = self.tokens(x) + self.kringle
        for layer in self.layers:
            x = layer(x[:, ::2])
        x = torch.cat([x, self.mask.expand(len(x), 1 + SIDE**2 - x.shape[1], -1)], 1)
        x = x + self.again
        return self.decoder(x)


def test_of_positions_nothing_is_said_where_nobody_asks_for_them():
    report = initialize(Masked(), Mimetic(positions="keep"), batch=images())
    assert not {"kringle", "again"} & {*report.notes, *report.skipped}
    assert "seen to be added" in initialize(Masked(), Mimetic(), batch=images()).notes["kringle"]


def test_under_where_the_positions_of_another_tower_stay():
    report = initialize(Masked(), Mimetic(where="dec*"), batch=images())
    assert all(name.startswith("dec") for entry in report.changed for name in entry.names)
    assert report.skipped["kringle"] == "not the positions of what where='dec*' selects"


class Queries(Foreign):
    """Learned queries, as many as there are patches, look at the tokens; what they see is added to them."""

    def __init__(self, placed):
        super().__init__()
        self.latents, self.placed = nn.Parameter(0.02 * torch.randn(SIDE**2, DIM)), placed
        self.norm, self.look = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
        self.keys, self.back = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        (key, value), latents = self.keys(super().tokens(x)).chunk(2, -1), self.latents.expand(len(x), -1, -1)
        if self.placed:
            key, value = self.keys(super().tokens(x) + self.kringle).chunk(2, -1)
        latents = latents + self.back((self.look(self.norm(latents)) @ key.mT).softmax(-1) @ value)
        return self.layers(latents)


@pytest.mark.parametrize("placed", [False, True])
def test_learned_queries_are_no_positions(placed):
    assert [site.name for site in position_sites(Queries(placed), batch=images())] == ["kringle"] * placed


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
    assert report.skipped == {"when": LEFT_ALONE}


def test_later_layers_of_pooled_tokens_are_not_given_the_grid_of_the_first():
    class Pooled(Named):
        def __init__(self):
            super().__init__(nn.Conv2d(3, DIM, 4, 4), 16)
            self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True) for _ in range(2)))

        def forward(self, x):
            x = self.layers[0](self.stem(x).flatten(2).mT + self.pos_embed)
            return self.layers[1](x.unflatten(1, (-1, 4)).mean(2))

    sites = attention_sites(Pooled(), batch=torch.randn(2, 3, 16, 16))
    assert [site.grid for site in sites] == [(4, 4), None]


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
    "frames": (frames, {}, (1, 6), None),
    "frames, a buffer": (frames, {"buffer": True}, (1, 6), None),
    "both": (both, {}, (1, 6), (2, 4)),
}


@pytest.mark.parametrize("case", SIGNS)
def test_of_two_tables_one_that_is_known_does_not_hide_the_other(case):
    registered, changes, *grids = SIGNS[case]

    class Own(Signs):
        pass

    if registered is not None:
        register_positions(Own)(registered)
    model, batch = Own(**changes), torch.randn(2, 6, 8, DIM)
    whole, names = nn.Sequential(model), [f"0.{name}" for name in model.names]
    assert {site.name: site.grid for site in position_sites(whole, batch=batch)} == dict(zip(names, grids, strict=True))
    weights = Weights(whole, batch=batch)
    over = [attention_positions(site, weights).absolute.name for site in attention_sites(weights)]
    assert over == names[::-1]  # joints first
    report = initialize(whole, Positions("gaussian", where="joints"), batch=batch)
    assert [entry.names[0] for entry in report.changed] == names[1:]
    assert report.notes[names[1]] == "seen to be added to the tokens: 8 tokens"


class Documents(nn.Module):
    """Attention over 9 words, then over 4 sentences; padding on the left moves the places of words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, DIM), nn.ModuleList([nn.Embedding(9, DIM), nn.Embedding(4, DIM)])
        self.sentence, self.document = Block(), Block()

    def forward(self, ids):
        flat = ids.flatten(0, 1)
        places = ((flat != 0).cumsum(-1) - 1).clamp_min(0)
        x = self.sentence(self.words(flat) + self.places[0](places)).mean(1).unflatten(0, (-1, 4))
        return self.document(x + self.places[1](torch.arange(4)))


def test_tables_in_a_list_of_their_own_are_found():
    sentences = torch.randint(1, 11, (2, 4, 9), generator=torch.Generator().manual_seed(0))
    weights = Weights(Documents(), batch=sentences)
    tables = [attention_positions(site, weights).absolute for site in attention_sites(weights)]
    assert [(table.name.split(".")[1], table.num_tokens) for table in tables] == [("0", 9), ("1", 4)]


class Waves(nn.Module):
    """Sinusoids in a buffer of any name, added as annotated-transformer does."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(DIM)[:, None] * 0.5 ** torch.arange(DIM // 2)
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], 1)[None], persistent=False)

    def forward(self, x):
        return x + self.waves[:, : x.shape[1]].requires_grad_(False)


class MaskedAttend(Attend):
    """A mask of as many tokens as attention is wide is a buffer of the model and is added to the logits."""

    def __init__(self, mask):
        super().__init__()
        self.masks = [mask]

    def logits(self, q, k):
        return super().logits(q, k) + self.masks[0]


class TextOfWaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place, self.layers = nn.Embedding(20, DIM), Waves(), nn.Sequential(Block(), Block())
        self.register_buffer("hidden", torch.full((DIM, DIM), -1e9).triu(1))
        for layer in self.layers:
            layer.mix = MaskedAttend(self.hidden)

    def forward(self, words):
        return self.layers(self.place(self.words(words)))


def test_sinusoids_in_a_buffer_are_found_whatever_its_name_and_masks_are_none():
    model, before, words = TextOfWaves(), Waves().waves, torch.randint(20, (2, DIM))
    assert [site.name for site in position_sites(model, batch=words)] == ["place.waves"]
    report = initialize(model, PreviousToken(), batch=words)
    assert "place.waves" in {name for entry in report.changed for name in entry.names}
    assert not torch.equal(model.place.waves, before)

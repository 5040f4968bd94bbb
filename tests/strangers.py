"""Attention in styles that no layout was written for: width 12, 3 heads of 4, unless it says otherwise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, DIM = 12, 3, 4


def heads(x, count=HEADS):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


class Apart(nn.Module):
    """Four linear maps under names of their own; subclasses change what lies between."""

    kv_heads = HEADS

    def __init__(self):
        super().__init__()
        self.ask, self.meet = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, self.kv_heads * DIM)
        self.carry, self.write = nn.Linear(WIDTH, self.kv_heads * DIM), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = heads(self.ask(x)), heads(self.meet(x), self.kv_heads), heads(self.carry(x), self.kv_heads)
        return self.write(merged(self.attend(*self.turn(q, k), v)))

    def mixed(self, x):
        return merged(self.attend(heads(self.ask(x)), heads(self.meet(x)), heads(self.carry(x))))

    def turn(self, q, k):
        return q, k

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=self.kv_heads < HEADS)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def attending(function):
    """Make four linear maps of a function that gives what the heads give of queries, keys and values."""
    return type(function.__name__, (Apart,), {"attend": staticmethod(function), "__doc__": function.__doc__})


# Four linear maps with something else done to queries and keys, or between them and what the heads give.
VARIANTS = {
    # Queries and keys have their channels in another order than the linear maps.
    "ReorderedChannels": {"turn": lambda q, k: (q[..., [2, 0, 3, 1]], k[..., [2, 0, 3, 1]])},
    "NormalizedQueries": {"turn": lambda q, k: (q / q.pow(2).mean(-1, keepdim=True).sqrt(), F.layer_norm(k, (DIM,)))},
    "BackwardKeys": {"turn": lambda q, k: (q, k.flip(-1))},
    "BackwardValues": {"attend": lambda q, k, v: fused(q, k, v.flip(-1))},
    # A product for every few queries.
    "QueriesByChunks": {
        "attend": lambda q, k, v: torch.cat([F.scaled_dot_product_attention(part, k, v) for part in q.split(2, 2)], 2)
    },
    "FusedKernel": {"attend": lambda q, k, v: Kernel.apply(q, k, v)},
    "GatedValues": {"attend": lambda q, k, v: fused(q, k, v.sigmoid())},
    "NoSoftmax": {"attend": lambda q, k, v: (q @ k.mT).relu() @ v},
    "BetweenChannels": {"attend": lambda q, k, v: ((q.mT @ k).softmax(-1) @ v.mT).mT},
    "Reversed": {"attend": lambda q, k, v: (-(q @ k.mT)).softmax(-1) @ v},
    "Inverted": {"attend": lambda q, k, v: (1 - (q @ k.mT).softmax(-1)) @ v},
    "Squared": {"attend": lambda q, k, v: (q @ k.mT).pow(2).softmax(-1) @ v},
    "SoftmaxOfSoftmax": {"attend": lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v},
    # The queries are added to what the heads give, in front of the output map, as in MViT 2.
    "QueriesAdded": {"attend": lambda q, k, v: fused(q, k, v) + q},
    "ScaledValues": {"attend": lambda q, k, v: fused(q, k, v * 0.7)},
    # A clamp at a bound that nothing reaches, in place, in front of a norm.
    "FarClamp": {
        "turn": lambda q, k: (F.layer_norm(q.clamp_(-1e3, 1e3), (DIM,)), F.layer_norm(k.clamp(-1e3, 1e3), (DIM,)))
    },
    "NearClamp": {"turn": lambda q, k: (F.layer_norm(q.clamp_(-0.1, 0.1), (DIM,)), F.layer_norm(k, (DIM,)))},
    # Nothing behind the norm tells that queries are squared.
    "SquaredQueries": {"turn": lambda q, k: (F.layer_norm(q.pow(2), (DIM,)), F.layer_norm(k, (DIM,)))},
    "ValuesTimesValues": {"attend": lambda q, k, v: fused(q, k, v * v.flip(-1))},
    # A softmax of the values over tokens: a function that needs the axes.
    "NormalizedValues": {"attend": lambda q, k, v: fused(q, k, v.softmax(-2))},
    # The map is transposed behind its softmax.
    "Transposed": {"attend": lambda q, k, v: (q @ k.mT).softmax(-1).mT @ v},
    # What is called a key asks: the softmax is taken over what is called queries, and the map is transposed.
    "RolesReversed": {"attend": lambda q, k, v: (q @ k.mT).softmax(-2).mT @ v},
    # The product is subtracted, and the difference is multiplied with a negative number.
    "TwoSigns": {
        "attend": lambda q, k, v: (-0.5 * (torch.ones(q.shape[-2], k.shape[-2]) - 2 * (q @ k.mT))).softmax(-1) @ v
    },
}
for name, functions in VARIANTS.items():
    globals()[name] = type(name, (Apart,), {key: staticmethod(function) for key, function in functions.items()})


class GroupedQueries(Apart):
    kv_heads = 1


class RotaryByHalves(Apart):
    def turn(self, q, k):
        return self.rotated(q), self.rotated(k)

    def angles(self, x):
        places = torch.arange(x.shape[-2])[:, None] * 0.7 ** torch.arange(DIM // 2)
        return places.cos(), places.sin()

    def rotated(self, x):
        cos, sin = (torch.cat([part, part], -1) for part in self.angles(x))
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat([-two, one], -1) * sin


class RotaryTokensFirst(RotaryByHalves):
    """Tokens come before samples, and heads are folded into the batch, as in ESM-2."""

    def forward(self, x):
        q, k, v = (self.folded(each(x)) for each in (self.ask, self.meet, self.carry))
        mixed = self.attend(*self.turn(q, k), v)
        return self.write(mixed.transpose(0, 1).reshape(x.shape))

    def folded(self, x):
        return x.reshape(len(x), -1, DIM).transpose(0, 1)


class RotaryByPairs(RotaryByHalves):
    """The second coordinate is written with its partner first."""

    def rotated(self, x):
        (cos, sin), (one, two) = self.angles(x), (x[..., ::2], x[..., 1::2])
        return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)


class RotaryInPlace(RotaryByHalves):
    """Tokens behind the first two are turned in place."""

    def turn(self, q, k):
        q, k = q.clone(), k.clone()
        for x in (q, k):
            x[:, :, 2:] = self.rotated(x[:, :, 2:])
        return q, k


class RotaryFilled(RotaryByHalves):
    """Pairs are turned into an empty tensor."""

    def rotated(self, x):
        (cos, sin), (one, two), out = self.angles(x), (x[..., ::2], x[..., 1::2]), torch.empty_like(x)
        out[..., ::2], out[..., 1::2] = one * cos - two * sin, one * sin + two * cos
        return out


class RotaryByAssignment(RotaryByHalves):
    """The half that turns in is written into a copy, slice by slice, as TransformerLens does."""

    def rotated(self, x):
        (cos, sin), half, across = self.angles(x), x.shape[-1] // 2, x.clone()
        across[..., :half] = -x[..., half:]
        across[..., half:] = x[..., :half]
        return x * torch.cat([cos, cos], -1) + across * torch.cat([sin, sin], -1)


class RotaryByComplexNumbers(RotaryByHalves):
    def rotated(self, x):
        turn = torch.complex(*self.angles(x))
        pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2)


class RotaryByComplexNumbersInPlace(RotaryByComplexNumbers):
    """What was turned is written to again as real numbers, which lie in the memory of complex ones."""

    def rotated(self, x):
        pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2))) * torch.complex(*self.angles(x))
        real = torch.view_as_real(pairs)
        real[..., 0] = real[..., 0].clone()
        return real.flatten(-2)


class BatchNormed(Apart):
    """A batch norm behind every linear map but the last, as in LeViT."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))

    def forward(self, x):
        maps = zip((self.ask, self.meet, self.carry), self.norms, strict=True)
        q, k, v = (heads(norm(linear(x).flatten(0, 1)).view_as(x)) for linear, norm in maps)
        return self.write(merged(self.attend(q, k, v)))


@attending
def ReachByHead(q, k, v):
    """Every head looks at another number of keys."""
    each = [fused(q[:, h], k[:, h, h:], v[:, h, h:]) for h in range(HEADS)]
    return torch.stack(each, 1)


class LowRankQueries(Apart):
    """Queries by two maps, one after the other."""

    def __init__(self, rank=6):
        super().__init__()
        self.down, self.ask = nn.Linear(WIDTH, rank), nn.Linear(rank, WIDTH)

    def forward(self, x):
        q, k, v = heads(self.ask(self.down(x))), heads(self.meet(x)), heads(self.carry(x))
        return self.write(merged(self.attend(q, k, v)))


@attending
def LocalAndGlobal(q, k, v):
    """The same queries look near and far."""
    near = torch.ones(q.shape[2], q.shape[2]).tril(1).triu(-1).bool()
    return F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(q, k, v, attn_mask=near)


@attending
def FewQueries(q, k, v):
    """Some queries look, the other tokens are given the mean of the values, as in Informer."""
    mixed = v.mean(2, keepdim=True).expand_as(v).clone()
    mixed[:, :, ::2] = (q[:, :, ::2] @ k.mT / 2).softmax(-1) @ v
    return mixed


class TiedRows(Apart):
    """One map for all rows of an alignment (rows, columns), whose channels lie side by side: MSA Transformer."""

    def forward(self, x):
        rows, columns, _ = x.shape

        def tied(y):
            return y.view(rows, columns, HEADS, DIM).permute(2, 1, 0, 3).reshape(HEADS, columns, rows * DIM)

        mixed = (tied(self.ask(x)) @ tied(self.meet(x)).mT).softmax(-1) @ tied(self.carry(x))
        return self.write(mixed.view(HEADS, columns, rows, DIM).permute(2, 1, 0, 3).reshape(x.shape))


@attending
def InPlace(q, k, v):
    """Scales, masks and adds in place."""
    q *= DIM**-0.5
    logits = q @ k.mT
    logits += torch.ones(logits.shape[-2:]).triu(1) * -1e4
    return logits.softmax(-1) @ v


@attending
def MaskedByChoice(q, k, v):
    """Logits are chosen, or a number in their place, as in Longformer."""
    logits = q @ k.mT / 2
    hidden = torch.ones(logits.shape[-2:]).triu(1).bool()
    return torch.full_like(logits, -torch.inf).where(hidden, logits).softmax(-1) @ v


@attending
def HeadByHead(q, k, v):
    """A product for every head."""
    each = [(q[:, h] @ k[:, h].mT / 2).softmax(-1) @ v[:, h] for h in range(HEADS)]
    return torch.stack(each, 1)


class TalkingHeads(Apart):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(HEADS, HEADS)

    def attend(self, q, k, v):
        logits = self.mix((q @ k.mT).movedim(1, -1)).movedim(-1, 1)
        return logits.softmax(-1) @ v


class Sink(Apart):
    """A learned column that takes attention and gives nothing."""

    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(HEADS))

    def attend(self, q, k, v):
        logits = q @ k.mT
        sink = self.sink.view(1, -1, 1, 1).expand(len(q), -1, q.shape[2], 1)
        return torch.cat([logits, sink], -1).softmax(-1)[..., :-1] @ v


class Windows(Apart):
    """Attention in windows of two of a sequence that is padded to a multiple of it."""

    def forward(self, x):
        length = x.shape[1]
        x = F.pad(x, (0, 0, 0, length % 2))
        apart = super().forward(x.reshape(-1, 2, WIDTH))
        return apart.reshape(len(x), -1, WIDTH)[:, :length]


class Einsum(nn.Module):
    """Parameters of three axes, (heads, width, head_dim), and einsum throughout."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(HEADS, WIDTH, DIM) / 3) for _ in range(3))
        self.o = nn.Parameter(torch.randn(HEADS, DIM, WIDTH) / 3)

    def forward(self, x):
        q, k, v = (torch.einsum("bnd,hdk->bhnk", x, w) for w in (self.q, self.k, self.v))
        maps = torch.einsum("bhik,bhjk->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhjk,hkd->bid", maps, v, self.o)


class Kernel(torch.autograd.Function):
    """Attention in a function with a backward pass of its own."""

    @staticmethod
    def forward(ctx, q, k, v):
        maps = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        ctx.save_for_backward(maps, v)
        return maps @ v

    @staticmethod
    def backward(ctx, grad):
        maps, _ = ctx.saved_tensors
        return None, None, maps.mT @ grad


class PointwiseConvolution(nn.Module):
    """One 1×1 convolution for all three, on maps of features; heads alternate channel by channel."""

    def __init__(self, kernel=1):
        super().__init__()
        self.qkv = nn.Conv2d(WIDTH, 3 * WIDTH, kernel, padding=kernel // 2)
        self.out = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)

    def forward(self, x):
        q, k, v = (part.flatten(2).unflatten(1, (DIM, HEADS)) for part in self.qkv(x).chunk(3, 1))
        maps = torch.einsum("bkhi,bkhj->bhij", q, k).softmax(-1)
        mixed = torch.einsum("bhij,bkhj->bkhi", maps, v).flatten(1, 2)
        return self.out(mixed.view(*mixed.shape[:2], *x.shape[2:]))


class AlternatingHeads(nn.Module):
    """One fused map whose rows are (group, [query, query, key, value], channel), as in Falcon and InternLM 2."""

    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = nn.Linear(16, 2 * 4 * DIM, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        each = self.wqkv(x).unflatten(-1, (2, 4, DIM))
        q, k, v = each[..., :2, :].flatten(2, 3), each[..., 2, :], each[..., 3, :]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.wo(merged(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


class GatedOutput(Apart):
    """What the heads give is multiplied with a gate of the tokens, and goes through an activation."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        mixed = self.mixed(x)
        return self.write((mixed * self.gate(x).sigmoid()).relu())


class Twice(Apart):
    """What the heads give goes into the output map twice, and into another one as well."""

    def __init__(self, maps=1):
        super().__init__()
        self.write = nn.Linear(2 * WIDTH // maps, WIDTH)
        self.also = nn.Linear(WIDTH, WIDTH) if maps == 2 else None

    def forward(self, x):
        mixed = self.mixed(x)
        if self.also is not None:
            return self.write(mixed) - self.also(mixed)
        return self.write(torch.cat([mixed, mixed], -1))


class ResidualWithoutOutput(Apart):
    """The heads' outputs are added to the tokens as they are; a linear map then takes the sum."""

    def forward(self, x):
        return self.write(x + self.mixed(x))


class BehindTorchsBack(Apart):
    """Keys are changed through numpy, which no operation of torch shows."""

    def turn(self, q, k):
        k.detach().numpy()[...] *= [[1.0], [-2.0], [3.0], [0.5], [1.0]]
        return q, k


class TiledKeys(nn.Module):
    """Four heads of queries; the keys' two are repeated as a whole, so that heads 0 and 2 share one."""

    def __init__(self):
        super().__init__()
        self.ask, self.write = nn.Linear(WIDTH, 4 * DIM), nn.Linear(4 * DIM, WIDTH)
        self.meet, self.carry = nn.Linear(WIDTH, 2 * DIM), nn.Linear(WIDTH, 2 * DIM)

    def forward(self, x):
        q, k, v = heads(self.ask(x), 4), heads(self.meet(x), 2), heads(self.carry(x), 2)
        return self.write(merged((q @ k.repeat(1, 2, 1, 1).mT).softmax(-1) @ v.repeat(1, 2, 1, 1)))


class Latent(Apart):
    """Keys put together from two maps."""

    def __init__(self):
        super().__init__()
        self.also = nn.Linear(WIDTH, HEADS * DIM)

    def forward(self, x):
        k = torch.cat([heads(self.meet(x))[..., :2], heads(self.also(x))[..., :2]], -1)
        return self.write(merged(self.attend(heads(self.ask(x)), k, heads(self.carry(x)))))


class NoOutput(Apart):
    def forward(self, x):
        return self.mixed(x)


class OneHead(nn.Module):
    """A head that is a module, without an output of its own."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, DIM, bias=False) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


class HeadsOfTheirOwn(nn.Module):
    """Heads that are modules, put together in front of one output map: how attention is often taught."""

    def __init__(self):
        super().__init__()
        self.heads, self.proj = nn.ModuleList(OneHead() for _ in range(HEADS)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class StackedLayers(nn.Module):
    """The matrices of two layers in one parameter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 4, WIDTH, WIDTH) / 4)

    def forward(self, x):
        for q, k, v, o in (layer.unbind(0) for layer in self.w):
            each = F.scaled_dot_product_attention(heads(x @ q), heads(x @ k), heads(x @ v))
            x = x + merged(each) @ o
        return x


class ComputedWeights(Apart):
    """The values' weight is computed from its parameter, and equal to it at first."""

    def __init__(self):
        super().__init__()
        self.carry = nn.utils.parametrizations.weight_norm(self.carry)


class GeneratedWeights(Apart):
    """The weight of the queries is what another linear map gives, as in a hypernetwork."""

    def forward(self, x):
        q = F.linear(x, self.ask(torch.eye(WIDTH)))
        return self.write(merged(self.attend(heads(q), heads(self.meet(x)), heads(self.carry(x)))))


class TiedOutput(Apart):
    def __init__(self):
        super().__init__()
        self.write.weight = self.carry.weight


@attending
def Sizes(q, k, v):
    """Heads of different sizes."""
    each = [part.transpose(1, 2).flatten(2).split([4, 6, 2], -1) for part in (q, k, v)]
    mixed = [F.scaled_dot_product_attention(*parts) for parts in zip(*each, strict=True)]
    return heads(torch.cat(mixed, -1))


class EinsumOutput(Einsum):
    """The output's parameter has its axes in another order, (head_dim, heads, width)."""

    def __init__(self):
        super().__init__()
        self.o = nn.Parameter(torch.randn(DIM, HEADS, WIDTH) / 3)

    def forward(self, x):
        q, k, v = (torch.einsum("bnd,hdk->bhnk", x, w) for w in (self.q, self.k, self.v))
        mixed = torch.einsum("bhij,bhjk->bhik", torch.einsum("bhik,bhjk->bhij", q, k).softmax(-1), v)
        return torch.einsum("bhnk,khd->bnd", mixed, self.o)


class TransformerXL(Apart):
    """Biases of content and positions behind the queries' map, and a product with positions beside that with keys."""

    def __init__(self):
        super().__init__()
        self.u, self.w = (nn.Parameter(torch.randn(HEADS, 1, DIM)) for _ in range(2))
        self.places = nn.Linear(WIDTH, WIDTH, bias=False)

    def attend(self, q, k, v):
        codes = torch.linspace(-1, 1, q.shape[-2])[:, None] * torch.arange(1, WIDTH + 1)
        content, place = (q + self.u) @ k.mT, (q + self.w) @ heads(self.places(codes)[None]).mT
        return ((content + place) / 2).softmax(-1) @ v


class ShortConvolution(Apart):
    """Keys go through a causal depthwise convolution and a norm behind their map."""

    def __init__(self):
        super().__init__()
        self.short = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)

    def turn(self, q, k):
        k = self.short(merged(k).mT)[..., : q.shape[-2]].mT
        return F.layer_norm(q, (DIM,)), F.layer_norm(heads(k), (DIM,))


class TwoKindsOfTokens(Apart):
    """Keys and values of the tokens and of a memory, by the same maps, beside each other."""

    def forward(self, x):
        memory = x.flip(-1)[:, :3]
        q, *both = heads(self.ask(x)), *(heads(torch.cat([m(x), m(memory)], 1)) for m in (self.meet, self.carry))
        return self.write(merged(self.attend(q, *both)))


class BiasInAStep(Apart):
    """Biases are added to what the maps give in a step of their own."""

    def forward(self, x):
        q, k, v = (heads(x @ m.weight.T + m.bias) for m in (self.ask, self.meet, self.carry))
        return self.write(merged(self.attend(q, k, v)))


@attending
def PaddedWithOnes(q, k, v):
    """Values behind the last are −1: of no linear map."""
    mask = torch.cat([torch.zeros(k.shape[-2]), torch.full((2,), -1e9)])
    k, v = F.pad(k, (0, 0, 0, 2)), F.pad(v, (0, 0, 0, 2), value=-1.0)
    return (q @ k.mT + mask).softmax(-1) @ v


class HeadsThrough(Apart):
    """What the heads give goes through a function of the test's in front of the output map."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def attend(self, q, k, v):
        return self.function(super().attend(q, k, v), v)


class MapsThrough(HeadsThrough):
    """What the softmax gives does."""

    def attend(self, q, k, v):
        return self.function((q @ k.mT / 2).softmax(-1)) @ v


class Temperatures(Apart):
    """A learned factor on the logits of each head."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = nn.Parameter(torch.tensor(factors).view(1, -1, 1, 1))

    def attend(self, q, k, v):
        return (q @ k.mT * self.factors).softmax(-1) @ v


class Differential(Apart):
    """A second map, of queries and keys of its own, is subtracted from the first."""

    def __init__(self):
        super().__init__()
        self.ask_2, self.meet_2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        pairs = (self.ask, self.meet), (self.ask_2, self.meet_2)
        one, two = ((heads(ask(x)) @ heads(meet(x)).mT / 2).softmax(-1) for ask, meet in pairs)
        return self.write(merged((one - 0.3 * two) @ heads(self.carry(x))))


@attending
def Slots(q, k, v):
    """A softmax over queries, and what every query got of it normalized."""
    maps = (q @ k.mT).softmax(-2)
    return (maps / maps.sum(-1, keepdim=True)) @ v


@attending
def StableSoftmax(q, k, v):
    """The largest logit is subtracted from all, and a factor stands in front of the product."""
    logits = torch.tensor(0.5) * (q @ k.mT)
    return (logits - logits.amax(-1, keepdim=True)).softmax(-1) @ v


class OneMapFor(Apart):
    """One linear map for several of queries, keys and values."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            setattr(self, name, self.meet)


class SharedKey(nn.Module):
    """Two layers of attention with one map of keys."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Apart(), Apart()
        self.two.meet = self.one.meet

    def forward(self, x):
        x = x + self.one(x)
        return x + self.two(x)

"""``assert_initialized`` names every planted defect, and passes a model that begins as it should."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import warm_process
from torch import nn

from structured_init import StructuredInitError
from structured_init.analysis import audit
from structured_init.testing import CHECKS, assert_initialized, check_initialized

WORDS, WIDTH = 60, 32
ALL_BUT_LOSS = [name for name in CHECKS if name != "loss"]
TOKENS = torch.randint(0, WORDS, (2, 6), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Gate(nn.Module):
    """Adds a parameter to a model, written by ``write`` when it is built and by ``again`` afterwards."""

    def __init__(self, write, again=None, size=WIDTH):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(size))
        with torch.no_grad():
            write(self.gate)
        self.again = again

    def forward(self, x):
        return x * (1 + 0 * self.gate.mean())


class Written(Gate):
    def reset_parameters(self):
        with torch.no_grad():
            self.again(self.gate)


class Net(nn.Module):
    num_classes = WORDS

    def __init__(self, extra=None, blocks=None, head=1.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(blocks or [Block() for _ in range(3)]))
        self.extra = extra() if extra else nn.Identity()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.scale = head

    def init_weights(self):
        for module in reversed(list(self.modules())):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, tokens):
        return self.head(self.norm(self.extra(self.blocks(self.embed(tokens))))) * self.scale


def test_a_model_that_begins_as_it_should_passes_every_check(tmp_path):
    check_initialized(Net, TOKENS, snapshot=tmp_path / "init.json", skip=CHECKS[:-1])
    checked = assert_initialized(Net, TOKENS, snapshot=tmp_path / "init.json")
    assert [check.name for check in checked.checks] == list(CHECKS)
    assert not any(check.left_out for check in checked.checks)
    assert str(checked).splitlines()[1:] == [f"{name:9} passed" for name in CHECKS]


def of_no_generator(tensor):
    tensor.uniform_(generator=torch.Generator().manual_seed(torch.Generator().seed() % 2**31))


def of_the_rank(tensor):
    tensor.normal_().mul_(1 + torch.distributed.get_rank() if torch.distributed.is_initialized() else 1)


def of_one_seed(tensor):
    tensor.normal_(generator=torch.Generator().manual_seed(1))


class Cache(nn.Module):
    """A random table that is in no state dictionary."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(WIDTH), persistent=False)

    def forward(self, x):
        return x + self.table


def copied():
    block = Block()
    return [block, *(copy.deepcopy(block) for _ in range(2))]


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


NOTHING, ONES, SMALL = (lambda tensor: None), nn.init.ones_, (lambda tensor: nn.init.normal_(tensor, std=0.02))
FLAT = "not written by init_weights() after to_empty()"
PLANTED = {
    "memory: extra.gate: 32 of 32 numbers were never written": lambda: Net(lambda: Gate(NOTHING)),
    "seed: extra.gate: differs between two models of seed 0": lambda: Net(lambda: Written(of_no_generator, ONES)),
    "seed: extra.gate: differs": lambda: Net(lambda: Written(of_the_rank, ONES)),
    "seeds: extra.gate: σ": lambda: Net(lambda: Written(of_one_seed, of_one_seed, (64, 64))),
    f"meta: extra.gate: 32 of 32 numbers were {FLAT}": lambda: Net(lambda: Gate(ONES)),
    f"meta: extra.table: 32 of 32 numbers were {FLAT}": lambda: Net(Cache),
    "meta: embed.weight: no longer tied to head.weight": Tied,
    "own: extra.gate: after init_weights(), mean 1.0; a fresh model has 0.0": lambda: Net(
        lambda: Written(nn.init.zeros_, ONES)
    ),
    "own: extra.gate: after init_weights(), root mean square 0.0": lambda: Net(
        lambda: Written(nn.init.normal_, SMALL, (64, 64))
    ),
    "copies: blocks.0–2.up.weight, blocks.0–2.up.bias, ": lambda: Net(blocks=copied()),
    "loss: the first loss is ": lambda: Net(head=10.0),
}


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_defect_is_named(line):
    rows = check_initialized(PLANTED[line], TOKENS).checks
    own = next(row for row in rows if row.name == line.partition(":")[0])
    assert [found for found in own.failures if f"{own.name}: {found}".startswith(line)], own


@pytest.mark.parametrize("first", [0, 1])
def test_checks_that_are_skipped_have_no_row(first, tmp_path):
    rows = check_initialized(Net, TOKENS, skip=CHECKS[first::2], snapshot=tmp_path / "init.json").checks
    assert [row.name for row in rows] == list(CHECKS[1 - first :: 2])


def test_the_error_lists_all_failures_one_line_each():
    with pytest.raises(AssertionError) as caught:
        assert_initialized(lambda: Net(lambda: Gate(NOTHING), blocks=copied()), TOKENS)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("Net does not begin as it should (memory, ")
    assert {"memory", "copies"} <= {line.split(":")[0].strip() for line in lines}


class Experts(nn.Module):
    def __init__(self, fault=lambda experts: None):
        super().__init__()
        self.w_in, self.gate = nn.Parameter(0.02 * torch.randn(4, 16, 32)), nn.Linear(16, 64)
        self.words = nn.Embedding(120, 16, padding_idx=0)
        with torch.no_grad():
            fault(self)


def test_equal_experts_are_seen_by_the_checks_and_by_the_audit():
    def fault(model):
        model.w_in[1:].copy_(model.w_in[:1])

    said = "w_in: 3 of 4 parts repeat another"
    assert check_initialized(Experts, skip=("meta", "own")).failures == []
    assert check_initialized(lambda: Experts(fault), skip=("meta", "own")).failures == [f"copies: {said}"]
    (finding,) = audit(Experts(fault)).findings
    assert (finding.kind, finding.text) == ("copies", said)


def test_timms_skip_is_memory():
    timm = pytest.importorskip("timm")
    assert assert_initialized(lambda: timm.create_model("test_vit")).failures == []
    found = check_initialized(lambda: timm.create_model("test_vit", weight_init="skip"), skip=("own", "meta")).failures
    assert any(line.startswith("memory: pos_embed: ") for line in found)


def test_tables_that_are_computed_are_the_same_under_two_seeds():
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = nn.Parameter(torch.linspace(0, 10, 300))
            self.hippo = nn.Parameter((2 * torch.arange(24) + 1.0).sqrt()[:, None].repeat(1, 16))

    found = check_initialized(Tables, skip={*CHECKS} - {"memory", "seed", "seeds", "copies"})
    assert found.failures == found.left_out == []


def test_what_is_wrong_with_the_arguments_is_said_in_one_line(as_installed):
    with pytest.raises(StructuredInitError, match="give a model or a function that builds one, not NoneType"):
        assert_initialized(None)
    with pytest.raises(StructuredInitError, match="unknown check 'los': did you mean 'loss'"):
        check_initialized(Net, skip=("los",))
    with pytest.raises(StructuredInitError, match=r"builds no nn\.Module, but int"):
        check_initialized(lambda: 3)


def test_states_of_torch_and_of_the_process_are_left_alone():
    torch.manual_seed(3)
    before, hook, environment = torch.get_rng_state(), sys.excepthook, dict(os.environ)
    check_initialized(Net, TOKENS)
    assert torch.equal(before, torch.get_rng_state())
    assert (sys.excepthook, dict(os.environ)) == (hook, environment)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.distributed.is_initialized()


def test_the_audit_says_the_first_loss():
    found = audit(Net(head=10.0), TOKENS)
    logits = Net.forward(net := Net(), TOKENS).detach()
    every = torch.stack([-logits.log_softmax(-1)[..., word] for word in range(WORDS)])  # each target in turn
    assert audit(net, TOKENS).loss == (pytest.approx(every.mean().item(), rel=1e-5), WORDS)
    assert f"ln {WORDS} = 4.09" in found.headline()
    assert "loss" in [each.kind for each in found.findings]


def test_the_plugin_runs_the_checks_and_imports_no_torch_where_it_is_not_asked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\ndef good():\n    return nn.Linear(8, 8)\n\n"
        "def bad():\n    model = nn.Linear(8, 8)\n    model.gate = nn.Parameter(torch.empty(8))\n    return model\n"
        "batch = torch.ones(2, 8)\n\ndef broken():\n    raise ValueError('no such width')\n"
    )
    (tmp_path / "script.py").write_text("import sys, pytest\n\npytest.main(sys.argv[1:])\n")
    asked = [each for name in ("good", "bad", "broken") for each in ("--initialized", f"mine:{name}")]
    options = ["--initialized-skip", "meta", "--initialized-batch", "mine:batch"]
    options += ["--initialized-where", "b*, [gw]*", "--initialized-snapshot=init.json"]
    arguments = ["-p", "structured_init_pytest", "-p", "no:cacheprovider", "-q", *asked, *options]
    root, log = {"PYTHONPATH": str(Path(__file__).parents[2])}, tmp_path / "log"
    process = warm_process.start(tmp_path / "script.py", arguments, root, tmp_path, log)
    (said,) = warm_process.wait([process], [log], 120)
    assert "memory: gate: 8 of 8 numbers were never written" in said
    assert "2 failed, 1 passed" in said
    assert re.search(r"begins as it should __+\n\S+mine.py:14: in broken\nValueError: no such width\n", said)
    assert "gate: is new" in said  # the file is that of the first
    assert "mine:good: loss      left out: its output does not say" in said
    code = "import structured_init_pytest, sys; print('torch' in sys.modules, 'structured_init' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


class Words(nn.Module):
    """A language model whose output is tied to embeddings of σ 1, and says nowhere that these are logits."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.gate = nn.Parameter(torch.empty(64))

    def forward(self, tokens):
        return (self.embedding(tokens) + self.gate) @ self.embedding.weight.T


def test_the_words_of_an_embedding_are_the_classes_of_the_loss_and_unwritten_memory_is_said_once():
    """Logits of one token are ⟨e_j, e_i⟩ ~ N(0, 64), but 64 at itself: about 64 on average."""
    tokens = torch.arange(100)[None]
    checked = check_initialized(Words, tokens, skip="meta, own")
    assert {line.split(":")[0] for line in checked.failures} == {"memory", "loss"}
    (loss,) = [line for line in checked.failures if line.startswith("loss")]
    assert float(loss.split()[5].strip(";")) == pytest.approx(64, rel=0.1)
    assert "among 100 classes has 4.61" in loss


def test_a_failure_says_which_checks_could_not_be_made_and_who_needs_no_meta_device():
    with pytest.raises(AssertionError, match=r"(?s)memory: gate: 64 of 64.*stuck, .*, unused left out: no b"):
        assert_initialized(Words, skip="meta,own")
    with pytest.raises(AssertionError, match=r"(?s)meta: scale.* nobody builds on the meta device needs neither"):
        assert_initialized(Meta)


LOADED = {name: each for name, each in Net().state_dict().items() if "head" not in name}


def fine_tuned(write=lambda weight: None):
    """Everything but the head is loaded; on the meta device nothing is."""
    model = Net()
    model.load_state_dict(LOADED, strict=False)
    write(model.head.weight.detach())
    return model


def test_what_is_loaded_is_told_from_what_is_drawn_anew():
    with pytest.raises(AssertionError, match=r"(?s)seeds: embed.*the same .*loaded, say .* where='classifier'"):
        assert_initialized(fine_tuned, TOKENS)
    with pytest.raises(AssertionError, match="where build fixes a seed"):
        assert_initialized(lambda: torch.manual_seed(0) and Net(), TOKENS)
    assert not assert_initialized(fine_tuned, TOKENS, where="head").left_out
    seeded = functools.partial(fine_tuned, of_one_seed)
    (line,) = check_initialized(seeded, TOKENS, where=["head"], skip="own,loss").failures
    assert line.startswith("seeds: head.weight: σ")
    for where in ("hed", ["embed", "hed"]):
        with pytest.raises(StructuredInitError, match="where='hed' selects no parameter: did you mean 'head'"):
            check_initialized(Net, where=where)


def test_what_is_inside_of_a_block_says_no_number_of_classes():
    blocks = [nn.Sequential(OrderedDict(fc=nn.Linear(64, 64))) for _ in range(2)]
    (loss,) = check_initialized(nn.Sequential(*blocks), torch.randn(2, 3, 64), skip=ALL_BUT_LOSS).checks
    assert loss.left_out == "its output does not say how many classes it has: give 'classes' if it has any"


class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.scale, self.norm = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(64)), nn.LayerNorm(64)

    def init_weights(self):
        nn.init.ones_(self.gate)
        self.norm.reset_parameters()


def test_an_own_method_called_initialize_weights_is_called():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(16, 16)
            self.initialize_weights()

        def initialize_weights(self):
            nn.init.normal_(self.gate.weight, std=0.02)

    found = check_initialized(Half).failures
    assert found == ["meta: gate.bias: 16 of 16 numbers were not written by initialize_weights() after to_empty()"]


@pytest.mark.parametrize("method", ["reset_parameters", "init_weights"])
def test_a_model_without_a_method_for_all_weights_is_not_expected_to_write_them(method):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.dummy = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(1))
            self.rates = [torch.rand(1) for _ in range(4)]

    setattr(Own, method, lambda self, *, module: None)  # of a layer, or for apply
    checked = check_initialized(Own)
    assert checked.failures == []
    why = "the model has no method that writes all its weights, init_weights() or initialize_weights()"
    assert f"meta, own left out: {why}" in checked.left_out


def test_blocks_that_are_in_no_list_are_said_not_to_be_compared():
    said = "no equal blocks were seen to run one behind the other: from block to block nothing was compared"
    checked = assert_initialized(lambda: Net(blocks=[Block()]), TOKENS)
    assert checked.left_out == [f"depth     left out: {said}"]
    assert audit(Net(blocks=[Block()]), TOKENS).notes == checked.left_out
    members = nn.ModuleList(nn.Sequential(nn.Linear(8, 4), nn.ReLU()) for _ in range(3))
    members.forward = lambda x: sum(member(x) for member in members)  # an ensemble
    assert f"depth     left out: {said}" in audit(members, torch.randn(4, 8)).notes


def test_classes_that_are_given_may_lie_behind_the_samples():
    model, images = nn.Conv2d(3, 5, 1), torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    pixels = model(images)
    expected = nn.functional.cross_entropy(pixels, torch.full_like(pixels, 0.2)).item()
    assert audit(model, images, classes=5).loss == (pytest.approx(expected, rel=1e-5), 5)
    assert audit(model, images, classes=4).loss is None


def test_a_dataclass_is_looked_into():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return Output(self.head(x))

    rows = {row.name: row for row in check_initialized(Net, torch.randn(4, 64)).checks}
    assert not rows["loss"].left_out
    assert audit(Net(), torch.randn(4, 64)).loss[0] == pytest.approx(math.log(10), rel=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "fails"), [(32, False), (768, True)])
def test_the_first_loss_is_that_of_the_width_a_model_is_built_with(width, fails):
    """Logits of transformers' Mamba are normed states times embeddings of σ 0.1: of variance 0.01 × width."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(hidden_size=width, num_hidden_layers=1, vocab_size=2000)
    model = transformers.MambaForCausalLM(config)
    expected = math.log(2000) + 0.01 * width / 2  # of normal logits, E[log Σ exp z] = ln C + σ²/2
    assert audit(model).loss[0] == pytest.approx(expected, rel=0.02)
    (row,) = check_initialized(model, skip=ALL_BUT_LOSS).checks
    assert bool(row.failures) == fails
